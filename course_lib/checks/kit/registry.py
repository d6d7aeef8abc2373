"""Where `check`, `hint` and `given` find an exercise by its number."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.script import ScriptExercise
from course_lib.checks.kit.sheet import Given, NumberExercise
from course_lib.errors import four_parts

Exercise = NumberExercise | ProbeExercise | ScriptExercise
CHECKS = Path(__file__).parents[1]


def discover() -> dict[str, Exercise]:
    """Every exercise that a file of a package `checks/module_NN` holds, by number: nothing else lists them."""
    chapters = [found.name for found in pkgutil.iter_modules([str(CHECKS)]) if found.name.startswith("module_")]
    files = [(name, file.name) for name in chapters for file in pkgutil.iter_modules([str(CHECKS / name)])]
    modules = [import_module(f"course_lib.checks.{chapter}.{file}") for chapter, file in files]
    found = [one for module in modules for one in vars(module).values() if isinstance(one, Exercise)]
    return {spec.key: spec for spec in sorted(found, key=lambda spec: [int(part) for part in spec.key.split(".")])}


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
