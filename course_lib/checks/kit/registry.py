"""Where `check`, `hint` and `given` find an exercise by its number."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.script import ScriptExercise
from course_lib.checks.kit.sheet import Given, NumberExercise
from course_lib.checks.kit.untouched import undisturbed
from course_lib.errors import four_parts

Exercise = NumberExercise | ProbeExercise | ScriptExercise
CHECKS = Path(__file__).parents[1]


def exercises() -> dict[str, Exercise]:
    """Every exercise by number: those of all packages `checks/module_NN`."""
    names = sorted(found.name for found in pkgutil.iter_modules([str(CHECKS)]) if found.name.startswith("module_"))
    return {key: spec for name in names for key, spec in chapter(name).items()}


@cache
def chapter(name: str) -> dict[str, Exercise]:
    """The exercises that the files of this package hold, if there is one: nothing else lists them.

    Who answers exercises of one lesson imports no other's, which would take a third of a second.
    """
    files = [file.name for file in pkgutil.iter_modules([str(CHECKS / name)])]
    modules = [import_module(f"course_lib.checks.{name}.{file}") for file in files]
    found = [one for module in modules for one in vars(module).values() if isinstance(one, Exercise)]
    return {spec.key: spec for spec in sorted(found, key=lambda spec: int(spec.key.partition(".")[2]))}


def find(exercise: str) -> Exercise:
    """The exercise with this number. Raises: ValueError if there is none."""
    spec = chapter(f"module_{str(exercise).partition('.')[0]}").get(exercise)
    if spec is None:
        rule, way_out = "exercises are named by module and number", f"choose one of {', '.join(exercises())}"
        raise ValueError(four_parts("exercise", repr(exercise), rule, way_out))
    return spec


@undisturbed()
def given(exercise: str, seed: int = 0) -> Given:
    """The numbers that an exercise starts from; other ones for another seed."""
    spec = find(exercise)
    if not isinstance(spec, NumberExercise):
        numbers = [key for key, other in exercises().items() if isinstance(other, NumberExercise)]
        rule, way_out = "only number exercises start from numbers", f"ask for one of {', '.join(numbers)}"
        raise ValueError(four_parts("given", repr(exercise), rule, way_out))
    return spec.given(seed)
