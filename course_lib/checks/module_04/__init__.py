"""Exercises of module 04, model and pipeline parallelism."""

from __future__ import annotations

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.sheet import NumberExercise
from course_lib.checks.module_04 import (
    claims,
    cutting,
    halves,
    micro,
    orders,
    predictions,
    tied,
    traffic,
    two_parts,
)

EXERCISES: tuple[NumberExercise | ProbeExercise, ...] = (
    halves.HALVES,
    claims.CLAIMS,
    cutting.CUT,
    orders.GPIPE,
    orders.ONE_F_ONE_B,
    predictions.PREDICT,
    traffic.CUTS,
    two_parts.TWO_PARTS,
    micro.NOT_DIVIDED,
    tied.TIED,
)
