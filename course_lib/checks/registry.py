"""Where `check`, `hint` and `given` find an exercise by its number."""

from __future__ import annotations

from course_lib.checks import module_02
from course_lib.checks.numbers import Given, NumberExercise
from course_lib.checks.spec import WriteExercise
from course_lib.errors import four_parts

EXERCISES: dict[str, WriteExercise | NumberExercise] = {spec.key: spec for spec in module_02.EXERCISES}


def find(exercise: str) -> WriteExercise | NumberExercise:
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
        raise ValueError(
            four_parts("given", repr(exercise), "only number exercises start from numbers", "ask for 02.1 or 02.10")
        )
    return spec.given(seed)
