"""Add sends and receives to an order of computing, so that ranks never block each other.

Every message gets a place in one order of all events, by time in an ideal run: a computation stands where it starts,
a message where its producer ends. Each rank's list is its part of that order, and both ends of a message stand at the
same place of it. So the earliest event that is still to come can always go on: no deadlock, even if every send waits
for its receive.
"""

from __future__ import annotations

from dataclasses import replace

from course_lib.schedules.instructions import (
    Backward,
    BackwardInput,
    Compute,
    Forward,
    Instruction,
    Message,
    Schedule,
    SendActivation,
    SendGradient,
    partner,
)
from course_lib.schedules.timing import Durations, time_schedule

Event = tuple[float, int, int, int]  # time, then messages before computations, then stage and micro-batch


def add_messages(schedule: Schedule) -> Schedule:
    """The same computations, with every message between stages on different ranks."""
    events: list[list[tuple[Event, Instruction]]] = [[] for _ in schedule.lists]  # by rank
    whole = float(schedule.stages_per_rank)  # so that a stage takes 1, and what happens at once compares equal
    durations = Durations(forward_s=whole, backward_input_s=whole, backward_weight_s=whole)
    for slot in time_schedule(schedule, durations):
        compute = slot.instruction
        mine = events[slot.rank]
        mine.append(((slot.start_s, 1, compute.stage, compute.microbatch), compute))
        for send in _sends(compute, schedule):
            receive = partner(send)
            theirs = events[schedule.rank_of(receive.stage)]
            # Both ends have one place in the order of all events.
            place = (slot.end_s, 0, send.stage, send.microbatch)
            mine.append((place, send))
            theirs.append((place, receive))
    lists = []
    for some in events:
        some.sort(key=lambda event: event[0])
        lists.append(tuple(instruction for _, instruction in some))
    return replace(schedule, lists=tuple(lists))


def _sends(compute: Instruction, schedule: Schedule) -> list[Message]:
    """What must leave the rank once this is computed."""
    if not isinstance(compute, Compute) or schedule.n_ranks == 1:
        return []
    if isinstance(compute, Forward) and compute.stage < schedule.n_stages - 1:
        return [SendActivation(compute.stage, compute.microbatch)]
    if isinstance(compute, Backward | BackwardInput) and compute.stage:
        return [SendGradient(compute.stage, compute.microbatch)]
    return []
