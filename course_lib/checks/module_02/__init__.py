"""Exercises of module 02, collectives."""

from __future__ import annotations

from course_lib.checks.kit.sheet import NumberExercise
from course_lib.checks.kit.spec import WriteExercise
from course_lib.checks.module_02 import claims, patterns, predictions, repairs, ring

EXERCISES: tuple[WriteExercise | NumberExercise, ...] = (
    predictions.TRAFFIC,
    ring.REDUCE_SCATTER,
    ring.ALL_GATHER,
    ring.ALL_REDUCE,
    patterns.TREE_BROADCAST,
    patterns.HIERARCHICAL,
    patterns.ALL_TO_ALL,
    repairs.RING_MAX,
    repairs.RING_AVERAGE,
    claims.CLAIMS,
)
