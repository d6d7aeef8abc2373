"""What is said of wrong numbers; the mutants show the rest."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_lib.checks import check
from course_lib.checks.kit.sheet import wrong_numbers
from course_lib.checks.module_04 import predictions
from tests.grading.test_sheets import right_numbers


def said_of(exercise, **wrong):
    """The reason, with right numbers but for these."""
    return check(exercise, right_numbers(exercise) | wrong).reason


@pytest.mark.parametrize(
    ("exercise", "wrong", "reason"),
    [
        ("04.2", {"enough": 30}, "enough = 30 micro-batches: 1/1.5 of the answer"),
        ("04.2", {"step_time": 100}, "step_time = 100 s: 1/1.5 of the answer"),
        ("04.7", {"messages": 224}, "messages = 224 messages: that is one way, the activations"),
        ("04.7", {"messages": 896}, "messages = 896 messages: count a message once, not at both of its ends"),
        ("04.7", {"messages": 512 * 7}, "messages = 3,584 messages: 8.0 x the answer"),
        ("04.7", {"times_less": 100}, "times_less = 100: 7.64 x the answer"),
    ],
)
def test_no_ring_explains_what_is_no_collective(exercise, wrong, reason):
    assert said_of(exercise, **wrong) == reason


@pytest.mark.parametrize(
    ("exercise", "wrong", "reason"),
    [
        ("03.4", {"naive_calls": 582}, "naive_calls = 582 calls: 2.0 x the answer"),
    ],
)
def test_nor_where_other_questions_are_about_one(exercise, wrong, reason):
    levels = check(exercise, wrong).levels
    assert reason in "; ".join(level.detail for level in levels).split("; ")


@pytest.mark.parametrize("guess", [150.0, np.int64(150), np.float64(150), Fraction(150), torch.tensor(150)])
def test_every_kind_of_number_is_one(guess):
    assert said_of("04.2", step_time=guess) == ""


@pytest.mark.parametrize("guess", ["150", True, float("nan"), float("inf"), [150], torch.ones(2), 1j])
def test_what_is_no_number_is_shown(guess):
    assert said_of("04.2", step_time=guess) == f"step_time: {guess!r} is not a number"


@pytest.mark.parametrize(
    ("guess", "reason"),
    [
        (0.83, "nearly, but rounded too far: give at least 4 digits"),
        (0.84, "0.8 % too large"),
        (0.8, "4 % too small"),
        (0.831, "0.28 % too small"),
    ],
)
def test_what_is_rounded_too_far_is_told_from_what_is_wrong(guess, reason):
    assert said_of("04.2", fraction_of_one=guess) == f"fraction_of_one = {guess}: {reason}"


@pytest.mark.parametrize("guess", [0.833, 0.8333, 0.8334])
def test_four_digits_are_enough_and_often_three(guess):
    assert said_of("04.2", fraction_of_one=guess) == ""


def test_an_answer_that_follows_is_not_blamed():
    activation = 2 * right_numbers("04.7")["activation"]
    first, second = said_of("04.7", activation=activation, first_rank_sends=32 * activation).split("; ")
    assert first.startswith("activation = 134,217,728 bytes: 4 bytes a number?")
    assert second.endswith(
        "first_rank_sends = 4,294,967,296 bytes: that follows from your own numbers above: mend those"
    )


def test_what_follows_from_no_number_has_its_own_reason():
    right = right_numbers("04.7")
    for other in (None, 0, "many"):
        reason = check("04.7", right | {"ddp_rank_sends": other, "times_less": 6}).reason
        assert reason.endswith("times_less = 6: 1/2.18 of the answer")


@pytest.mark.parametrize("exercise", ["02.1", "04.2", "04.7"])
def test_what_holds_no_numbers_is_said_once(exercise):
    first, *others = check(exercise, None).levels
    assert first.detail == "the answer is of type NoneType: pass the dict of numbers"
    assert others and all((level.detail, level.ran) == ("not run yet", False) for level in others)


def test_large_numbers_are_written_alike():
    reason = said_of("04.7", ddp_rank_sends=3e10, activation=70_000_000)
    assert reason == "activation = 70,000,000 bytes: 4.3 % too large"
    assert check("04.7", {"ddp_rank_sends": 30_000_000_000.5}, part="ddp").reason.startswith(
        "ddp_rank_sends = 30,000,000,000 bytes: "
    )


# 04.6 ------------------------------------------------------------------------------------------------------------


def rounded(found):
    return found[0], round(found[1], 4), found[2]


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor, rounded, lambda found: [*map(torch.tensor, found)]])
def test_three_numbers_of_04_6_pass_in_every_form(kind, answers):
    right = answers("solutions", "04_model_and_pipeline_parallelism")["schedule_numbers"]
    assert check("04.6", lambda *numbers: kind(right(*numbers))).passed


@pytest.mark.parametrize("seed", range(30))
def test_04_6_draws_numbers_that_no_wrong_formula_hits(seed):
    """Only with such numbers is a formula told from others, and its cause from other causes."""
    for level in predictions.PREDICT.levels.values():
        for ask in level.cases:
            schedule, p, m, v, rank, F, B, W = ask.arguments(seed)
            assert len({F, B, W}) == 3 and B - F != 1
            assert F + B + W not in (3 * F, 3 * B, 3 * W)
            assert v == 1 or (p - 1) * (F + B + W) % v
            assert schedule != "zb-h1" or (min(F, B) >= W and m >= p)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("part", range(3))
def test_04_6_s_first_cases_tell_its_likely_wrong_answers_apart(part, seed):
    formula = predictions.FORMULAS[part]
    cases = list(predictions.PREDICT.levels.values())[part].cases
    for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1"):
        first = next(ask for ask in cases if ask.arguments(seed).schedule == schedule)
        numbers = first.arguments(seed)
        _, p, m, v, rank, *_ = numbers
        assert 0 < rank < p - 1 and m > p
        causes = {}
        for cause, wrong in wrong_numbers(formula.slips):
            if (value := wrong(numbers)) == value and not math.isclose(value, formula.answer(numbers), rel_tol=2e-3):
                causes.setdefault(round(value, 9), set()).add(cause)
        assert all(len(found) == 1 for found in causes.values()), causes
