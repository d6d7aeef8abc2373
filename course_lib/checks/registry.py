"""Where `check`, `hint` and `given` find an exercise by its number."""

from __future__ import annotations

from course_lib.checks import module_01, module_02, module_03, module_04
from course_lib.checks.numbers import Given, NumberExercise
from course_lib.checks.probe import ProbeExercise
from course_lib.checks.spec import WriteExercise
from course_lib.errors import four_parts

Exercise = WriteExercise | NumberExercise | ProbeExercise
MODULES = (module_01, module_02, module_03, module_04)
EXERCISES: dict[str, Exercise] = {spec.key: spec for module in MODULES for spec in module.EXERCISES}


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
