"""Slips of numbers and of formulas: each, given as an answer, is told its own sentence. No rank is needed for that."""

from __future__ import annotations

import math

import pytest

from course_lib.checks import check
from course_lib.checks.kit.formula import Computed, FormulaExercise
from course_lib.checks.kit.registry import exercises
from course_lib.checks.kit.sheet import NumberExercise, judge_numbers, value, wrong_numbers
from course_lib.comm.ledger import Ledger

SEEDS = range(12)
SHEETS = {key: spec for key, spec in exercises().items() if isinstance(spec, NumberExercise)}
FORMULAS = {key: spec for key, spec in exercises().items() if isinstance(spec, FormulaExercise)}
NUMBER_SLIPS = [
    (key, level, ask, number)
    for key, spec in SHEETS.items()
    for level, group in spec.levels.items()
    for ask in group.asks
    for number in range(len(wrong_numbers(ask.slips)))
]
FORMULA_SLIPS = [
    (key, formula, number)
    for key, spec in FORMULAS.items()
    for formula in spec.formulas
    for number in range(len(wrong_numbers(formula.slips)))
]


def right_numbers(exercise, seed=0):
    """The sheet's own."""
    spec = SHEETS[exercise]
    given = spec.given(seed)
    return {ask.name: value(ask.answer, given) for group in spec.levels.values() for ask in group.asks}


def told_of_number(exercise, level, name, wrong, seed):
    if math.isnan(wrong):
        return ""
    answers = right_numbers(exercise, seed) | {name: wrong}
    (result,) = judge_numbers(SHEETS[exercise], answers, [level], seed=seed)
    return result.detail if result.points == 0 else ""


def alternatives(told, slips):
    """What is left of a text without the sentences of slips and what joins them."""
    for says in sorted(slips, key=len, reverse=True):
        told = told.replace(says, "")
    return told.split("; or ")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("exercise", SHEETS)
def test_the_sheet_s_own_numbers_are_right(exercise, seed):
    results = judge_numbers(SHEETS[exercise], right_numbers(exercise, seed), list(SHEETS[exercise].levels), seed=seed)
    assert all(result.points == result.possible > 0 for result in results)


@pytest.mark.parametrize(
    ("exercise", "level", "ask", "number"), NUMBER_SLIPS, ids=[f"{key}-{a.name}-{n}" for key, _, a, n in NUMBER_SLIPS]
)
def test_a_wrong_number_is_told_its_own_sentence(exercise, level, ask, number):
    """And where another slip gives the same number, that one's as well: the number does not say which it was."""
    says, wrong = wrong_numbers(ask.slips)[number]
    guesses = [value(wrong, SHEETS[exercise].given(seed)) for seed in SEEDS]
    for seed, guess in enumerate(guesses):
        if not (ask.choice and math.isnan(guess)):
            _, _, told = told_of_number(exercise, level, ask.name, guess, seed).partition(": ")
            assert says in told and set(alternatives(told, ask.slips)) == {""}


@pytest.mark.parametrize(
    ("exercise", "formula", "number"),
    FORMULA_SLIPS,
    ids=[f"{key}-{formula.name}-{n}" for key, formula, n in FORMULA_SLIPS],
)
def test_a_wrong_formula_is_told_its_own_sentence(exercise, formula, number):
    """In the first case that it gets wrong: only there does a learner see it."""
    says, wrong = wrong_numbers(formula.slips)[number]
    assert f": {says}" in told_of_formula(FORMULAS[exercise], formula, wrong)


def told_of_formula(spec, formula, wrong, seed=0):
    """Case after case, the right number where the slip has none."""
    for level in spec.levels.values():
        for case in level.cases:
            if spec.formulas[case.part] is formula:
                given = spec.inputs(case, seed)
                number = wrong(given.asked)
                right = number is not None and math.isnan(number)
                report = Computed(formula.answer(given.asked) if right else number, "")
                if text := spec.verdict(case, given, (report,), Ledger((), 1)):
                    return text
    return ""


@pytest.mark.parametrize(
    ("exercise", "level", "wrong", "reason"),
    [
        ("01.4", "gpus", {"h100_80": 16}, "1.14 x the answer"),
        ("01.4", "gpus", {"a100_40": 0}, "a100_40 = 0 GPUs: not right"),
        ("01.4", "count", {"parameters": 65.8}, "in billions? The number itself is asked"),
        ("01.10", "model", {"released_parameters": 314}, "in billions? The number itself is asked"),
        ("02.1", "ring", {"ring_rank_sends": 7 * 2**22}, "bytes: elements instead of bytes? One float32 has 4 bytes"),
        ("02.1", "time", {"ring_time": "a second"}, "ring_time: 'a second' is not a number"),
        ("04.2", "share", {"idle_fraction": 0.19}, "a step lasts as long as m + N - 1 micro-batches, not m + N"),
        ("04.2", "share", {"fraction_of_one": 83.33}, "in percent? The share itself is asked, between 0 and 1"),
        ("04.2", "share", {"enough": 47}, "enough = 47 micro-batches: 4.4 % too large"),
        ("04.7", "cut", {"activation": 67.1}, "in millions? The number itself is asked"),
        ("04.7", "ddp", {"times_less": 13}, "times_less = 13: nearly, but rounded too far: give at least 3 digits"),
    ],
)
def test_what_no_slip_gives_is_read_as_well(exercise, level, wrong, reason):
    failed = next(found for found in check(exercise, right_numbers(exercise) | wrong).levels if not found.passed)
    assert (failed.name, failed.points) == (level, 0)
    assert reason in failed.detail
