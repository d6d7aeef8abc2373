"""Every solution passes, every untouched stub fails, every mutant is rejected for the right reason."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from course_lib.checks import check, given
from course_lib.checks.kit.numbers import NumberExercise
from course_lib.checks.kit.registry import EXERCISES
from tests.grading.conftest import mutants_of

HANG_S = 2.0  # mutants that hang; a right answer takes 0.1 s
MODULES = ("01_why_distributed", "02_collectives", "03_mlp_ddp", "04_model_and_pipeline_parallelism")
MUTANTS = [mutant for module in MODULES for mutant in mutants_of(module)]
ANSWERS = {
    "01.1": "value_of",
    "01.2": "train",
    "01.3": "count_parameters",
    "01.4": "needs",
    "01.5": "zero_bytes",
    "01.6": "train_zero_1",
    "01.7": "activation_bytes",
    "01.8": "gpus_needed",
    "01.9": "training_days",
    "01.10": "slips",
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
    "03.1": "average_gradients",
    "03.2": "same_start",
    "03.3": "train_on_share",
    "03.4": "step",
    "03.5": "samples_of",
    "03.6": "average_in_buckets",
    "03.7": "accumulate",
    "03.8": "Repaired",
    "03.9": "Counted",
    "03.10": "overlapped_backward",
    "04.1": "train_half",
    "04.2": "idle",
    "04.3": "cut_layers",
    "04.4": "gpipe_order",
    "04.5": "one_f_one_b_order",
    "04.6": "schedule_numbers",
    "04.7": "cuts",
    "04.8": "TwoParts",
    "04.9": "repaired_step",
    "04.10": "repaired_tied_step",
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_gets_every_point(exercise, answers):
    result = check(exercise, answer_of(exercise, answers, "solutions"))
    assert result.passed
    assert result.points == result.possible == sum_of_points(exercise)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_passes_with_other_inputs(exercise, answers):
    if not isinstance(EXERCISES[exercise], NumberExercise):
        assert check(exercise, answer_of(exercise, answers, "solutions"), seed=12345).passed
    else:
        answer = next(m for m in MUTANTS if m[0] == exercise)[3]
        assert not check(exercise, answer(*given(exercise, 7)), seed=7).passed


@pytest.mark.parametrize("exercise", EXERCISES)
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
    if isinstance(EXERCISES[exercise], NumberExercise):
        answer = answer(*given(exercise))
    result = check(exercise, answer, timeout=HANG_S if hangs else 10.0)
    failed = next(found for found in result.levels if not found.passed)
    assert (failed.name, failed.points) == (level, 0)
    assert reason in failed.detail


@pytest.mark.parametrize(("module", "least"), [("01", 4), ("02", 3), ("03", 5), ("04", 8)])
def test_every_exercise_has_mutants(module, least):
    counts = Counter(mutant[0] for mutant in MUTANTS)
    assert counts.keys() == EXERCISES.keys()
    assert min(count for exercise, count in counts.items() if exercise.startswith(module)) >= least


def answer_of(exercise, answers, kind):
    module = next(module for module in MODULES if module[:2] == exercise[:2])
    return answers(kind, module)[ANSWERS[exercise]]


def sum_of_points(exercise):
    levels = EXERCISES[exercise].levels
    return sum(getattr(level, "points", level) for level in levels.values())
