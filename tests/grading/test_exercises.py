"""Every solution passes, every untouched stub fails, every mutant is rejected for the right reason."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from course_lib.checks import check, given
from course_lib.checks.registry import EXERCISES
from course_lib.checks.spec import WriteExercise
from tests.grading.conftest import mutants_of

HANG_S = 2.0  # mutants that hang; a right answer takes 0.1 s
MUTANTS = mutants_of("02_collectives")
ANSWERS = {
    "02.1": "numbers",
    "02.2": "ring_reduce_scatter",
    "02.3": "ring_all_gather",
    "02.4": "ring_all_reduce",
    "02.5": "tree_broadcast",
    "02.6": "hierarchical_all_reduce",
    "02.7": "all_to_all",
    "02.8": "ring_max",
    "02.9": "ring_average",
    "02.10": "claims",
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_gets_every_point(exercise, answers):
    result = check(exercise, answers("solutions")[ANSWERS[exercise]])
    assert result.passed
    assert result.points == result.possible == sum_of_points(exercise)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_passes_with_other_inputs(exercise, answers):
    if isinstance(EXERCISES[exercise], WriteExercise):
        assert check(exercise, answers("solutions")[ANSWERS[exercise]], seed=12345).passed
    else:
        answer = next(m for m in MUTANTS if m[0] == exercise)[3]
        assert not check(exercise, answer(*given(exercise, 7)), seed=7).passed


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_untouched_stub_gets_none(exercise, answers):
    result = check(exercise, answers("release")[ANSWERS[exercise]])
    assert not result.passed
    assert result.points == 0
    assert re.search("not written yet|no number yet", result.reason)


@pytest.mark.parametrize(
    ("exercise", "level", "reason", "answer", "hangs"),
    MUTANTS,
    ids=[f"{m[0]}-{m[3].__name__}-{i}" for i, m in enumerate(MUTANTS)],
)
def test_a_mutant_is_rejected_for_the_right_reason(exercise, level, reason, answer, hangs):
    if not isinstance(EXERCISES[exercise], WriteExercise):
        answer = answer(*given(exercise))
    result = check(exercise, answer, timeout=HANG_S if hangs else 10.0)
    failed = next(found for found in result.levels if not found.passed)
    assert (failed.name, failed.points) == (level, 0)
    assert reason in failed.detail


def test_every_exercise_has_three_mutants():
    counts = Counter(mutant[0] for mutant in MUTANTS)
    assert counts.keys() == EXERCISES.keys()
    assert min(counts.values()) >= 3


def sum_of_points(exercise):
    levels = EXERCISES[exercise].levels
    return sum(getattr(level, "points", level) for level in levels.values())
