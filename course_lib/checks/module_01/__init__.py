"""Exercises of module 01, where the memory and the time go."""

from __future__ import annotations

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.sheet import NumberExercise
from course_lib.checks.module_01 import bits, counting, duration, needs, sharing, slips, stand_still, zero_ranks

EXERCISES: tuple[NumberExercise | ProbeExercise, ...] = (
    bits.VALUE_OF_BITS,
    stand_still.STAND_STILL,
    counting.COUNT,
    needs.NEEDS,
    sharing.ZERO_BYTES,
    zero_ranks.ZERO_1,
    counting.ACTIVATIONS,
    sharing.GPUS_NEEDED,
    duration.TRAINING_DAYS,
    slips.SLIPS,
)
