"""Where `check`, `hint` and `given` find an exercise by its number."""

from __future__ import annotations

import re
from collections import namedtuple
from functools import cache
from importlib import import_module
from pathlib import Path

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.script import ScriptExercise
from course_lib.checks.kit.sheet import NumberExercise
from course_lib.checks.kit.untouched import undisturbed
from course_lib.errors import four_parts

Exercise = NumberExercise | ProbeExercise | ScriptExercise
CHECKS = Path(__file__).parents[1]
_KEY = re.compile(r'^ +key="(\d\d\.\d+)",$', re.MULTILINE)  # as each exercise says its number


def exercises() -> dict[str, Exercise]:
    """Every exercise by number: those of all packages `checks/module_NN`."""
    return {key: find(key) for key in _keys()}


def find(exercise: str) -> Exercise:
    """The exercise with this number. Raises: ValueError if there is none."""
    name, key = f"module_{str(exercise).partition('.')[0]}", str(exercise)
    if key not in _files(name):
        rule, way_out = "exercises are named by module and number", f"choose one of {', '.join(_keys())}"
        raise ValueError(four_parts("exercise", repr(exercise), rule, way_out))
    return _loaded(name, key)


def _keys() -> list[str]:
    return [key for path in sorted(CHECKS.glob("module_*")) for key in _files(path.name)]


@cache
def _files(name: str) -> dict[str, str]:
    """By number, the file of a chapter that holds the exercise: read, not imported, for nothing else lists them.

    A chapter's other files would bring with them most of the library, which a check of one exercise has no use for.
    """
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (CHECKS / name).glob("*.py")}
    found = {key: file for file, text in texts.items() for key in _KEY.findall(text)}
    return dict(sorted(found.items(), key=lambda pair: int(pair[0].partition(".")[2])))


@cache
def _loaded(name: str, key: str) -> Exercise:
    module = import_module(f"course_lib.checks.{name}.{_files(name)[key]}")
    return next(one for one in vars(module).values() if isinstance(one, Exercise) and one.key == key)


@undisturbed()
def given(exercise: str, seed: int = 0) -> tuple[float, ...]:
    """The numbers that an exercise starts from, by name; other ones for another seed."""
    spec = find(exercise)
    if not isinstance(spec, NumberExercise):
        numbers = [key for key, other in exercises().items() if isinstance(other, NumberExercise)]
        rule, way_out = "only number exercises start from numbers", f"ask for one of {', '.join(numbers)}"
        raise ValueError(four_parts("given", repr(exercise), rule, way_out))
    return record_of(spec, seed)


def record_of(spec: NumberExercise, seed: int) -> tuple[float, ...]:
    """What a learner may see of what is given, which also knows how the answers follow."""
    found = spec.given(seed)
    return _record(spec.key, found._fields)(*found)


@cache
def _record(key: str, names: tuple[str, ...]) -> type[tuple[float, ...]]:
    """One type for each exercise, by which its numbers are known from another one's."""
    return namedtuple("Given", names)
