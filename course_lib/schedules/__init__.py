"""Pipeline schedules as data: one list of instructions per rank, to be run, timed, checked and drawn. No torch."""

from __future__ import annotations

from course_lib.schedules.build import SCHEDULES, make_schedule
from course_lib.schedules.check import problems
from course_lib.schedules.in_flight import Held, held, in_flight_over_time
from course_lib.schedules.instructions import (
    LABELS,
    Backward,
    BackwardInput,
    BackwardWeight,
    Compute,
    Forward,
    Instruction,
    Message,
    RecvActivation,
    RecvGradient,
    Schedule,
    SendActivation,
    SendGradient,
)
from course_lib.schedules.timing import Durations, Slot, bubble_s, durations_by_rank, idle_s, time_schedule
