"""Whatever an instructor's seed draws: no slip gives the right number, so each rule of the text is tested."""

from __future__ import annotations

import math

import pytest
from test_sheets import SHEETS, right_numbers

from course_lib.checks.kit.sheet import judge_numbers, value, wrong_numbers

SEEDS = range(50)
ASKS = [(key, level, ask) for key, spec in SHEETS.items() for level, group in spec.levels.items() for ask in group.asks]


@pytest.mark.parametrize(("key", "level", "ask"), ASKS, ids=[f"{key}-{ask.name}" for key, _, ask in ASKS])
def test_each_slip_is_refused_at_every_seed(key, level, ask):
    """A choice among the lines of a slide has no slip for the line that is the right one."""
    for seed in SEEDS:
        given, right = SHEETS[key].given(seed), right_numbers(key, seed)
        for says, number in wrong_numbers(ask.slips):
            wrong = value(number, given)
            if ask.choice and math.isnan(wrong):
                continue
            assert not math.isclose(wrong, right[ask.name], rel_tol=ask.tolerance), (seed, says)
            (result,) = judge_numbers(SHEETS[key], right | {ask.name: wrong}, [level], seed=seed)
            assert result.points == 0, (seed, says)
            assert says in result.detail, (seed, result.detail)


@pytest.mark.parametrize(("key", "ask"), [(key, ask) for key, _, ask in ASKS if ask.choice])
def test_no_choice_is_the_same_for_all(key, ask):
    assert len({value(ask.answer, SHEETS[key].given(seed)) for seed in SEEDS}) > 1
