"""Where `check`, `hint` and `given` find an exercise by its number."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.sheet import Given, NumberExercise
from course_lib.checks.kit.spec import WriteExercise
from course_lib.errors import four_parts

Exercise = WriteExercise | NumberExercise | ProbeExercise
CHECKS = Path(__file__).parents[1]


def discover() -> dict[str, Exercise]:
    """The `EXERCISES` of every package `checks/module_NN`, by their numbers: a chapter is a folder and nothing else."""
    chapters = sorted(found.name for found in pkgutil.iter_modules([str(CHECKS)]) if found.name.startswith("module_"))
    modules = [import_module(f"course_lib.checks.{name}") for name in chapters]
    return {spec.key: spec for module in modules for spec in module.EXERCISES}


EXERCISES = discover()


def find(exercise: str) -> Exercise:
    """The exercise with this number. Raises: ValueError if there is none."""
    if exercise not in EXERCISES:
        raise ValueError(
            four_parts(
                "exercise",
                repr(exercise),
                "exercises are named by module and number",
                f"choose one of {', '.join(EXERCISES)}",
            )
        )
    return EXERCISES[exercise]


def given(exercise: str, seed: int = 0) -> Given:
    """The numbers that an exercise starts from; other ones for another seed."""
    spec = find(exercise)
    if not isinstance(spec, NumberExercise):
        numbers = [key for key, other in EXERCISES.items() if isinstance(other, NumberExercise)]
        rule, way_out = "only number exercises start from numbers", f"ask for one of {', '.join(numbers)}"
        raise ValueError(four_parts("given", repr(exercise), rule, way_out))
    return spec.given(seed)
