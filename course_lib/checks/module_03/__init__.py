"""Exercises of module 03, data parallelism."""

from __future__ import annotations

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.sheet import NumberExercise
from course_lib.checks.module_03 import accumulate, average, bugs, overlap, predictions, replicate, sampling, uneven

EXERCISES: tuple[NumberExercise | ProbeExercise, ...] = (
    average.BY_HAND,
    replicate.SAME_START,
    uneven.UNEVEN,
    predictions.STEP,
    sampling.SAMPLES,
    average.IN_BUCKETS,
    accumulate.ACCUMULATE,
    bugs.LOOKS_RIGHT,
    bugs.FIRST_STEP,
    overlap.OVERLAP,
)
