"""Every solution passes, every untouched stub fails, every mutant is rejected for the right reason."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from course_lib.checks import check
from course_lib.checks.kit.registry import exercises, find
from course_lib.checks.kit.sheet import wrong_numbers
from tests.grading.conftest import MODULES, answer_of, mutants_of

HANG_S = 2.0  # mutants that hang; a right answer takes 0.1 s
OTHER_SEED = 12345
MUTANTS = [mutant for module in MODULES.values() for mutant in mutants_of(module)]
LEAST, LEAST_SINCE = {"01": 4, "02": 3, "03": 5}, 8  # wrong answers of an exercise: mutants and slips


@pytest.mark.parametrize("exercise", exercises())
def test_the_solution_gets_every_point_with_other_inputs(exercise, answers):
    """With its own it does so in its notebook, which is executed and compared."""
    result = check(exercise, answer_of(exercise, answers, "solutions", OTHER_SEED), seed=OTHER_SEED)
    assert result.passed
    assert result.points == result.possible == sum(level.points for level in find(exercise).levels.values())


@pytest.mark.parametrize("exercise", exercises())
def test_the_untouched_stub_gets_none(exercise, answers):
    result = check(exercise, answer_of(exercise, answers, "release"))
    assert not result.passed
    assert result.points == 0
    assert re.search("not written yet|no number yet", result.reason)


@pytest.mark.parametrize(
    ("exercise", "level", "reason", "answer", "hangs"),
    MUTANTS,
    ids=[f"{m[0]}-{getattr(m[3], '__name__', 'parts')}-{i}" for i, m in enumerate(MUTANTS)],
)
def test_a_mutant_is_rejected_for_the_right_reason(exercise, level, reason, answer, hangs):
    result = check(exercise, answer, timeout=HANG_S if hangs else 10.0)
    failed = next(found for found in result.levels if not found.passed)
    assert failed.name in level.split(" or ") and failed.points == 0  # what is measured may show it later
    assert reason in failed.detail


WITH_DIAGNOSIS = {
    "05.9": [0, 2, 1],
    "06.9": [0, 3, 1],
    "06.10": [0, 2, 1, 1],
    "07.6": [0, 3, 1],
    "07.7": [0, 2, 1],
    "07.9": [0, 2, 1],
    "08.10": [0, 2, 1, 1],
    "09.9": [0, 2, 1],
    "10.9": [0, 2],
    "11.9": [0, 2, 1],
}


@pytest.mark.parametrize(("exercise", "points"), WITH_DIAGNOSIS.items())
def test_a_wrong_diagnosis_does_not_hide_what_was_mended(exercise, points, answers):
    mended = answer_of(exercise, answers, "solutions")
    wrong = type("Wrong", (mended,), {"diagnosis": lambda self: ("gradient norm", 4)})
    assert [level.points for level in check(exercise, wrong).levels] == points


@pytest.mark.parametrize("exercise", exercises())
def test_every_exercise_has_wrong_answers(exercise):
    wrong = sum(mutant[0] == exercise for mutant in MUTANTS) + slips_of(find(exercise))
    least = LEAST.get(exercise[:2], LEAST_SINCE)
    assert wrong >= least, (
        f"exercise {exercise} has {wrong} wrong answers and needs {least}, each refused for its own reason: "
        f"write them into exercises/mutants/{MODULES[exercise[:2]]}.py, or as slips into the exercise itself"
    )


def slips_of(spec):
    """How many wrong answers the exercise itself holds, each with its sentence."""
    groups = [getattr(group, "asks", ()) for group in spec.levels.values()]
    sheets = [one.slips for one in (*chain(*groups), *getattr(spec, "formulas", ()))]
    return len(getattr(spec, "slips", ())) + sum(len(wrong_numbers(slips)) for slips in sheets)
