"""Who is slow by its own work, and who only looks so."""

from __future__ import annotations

import math
import random

import pytest

from course_lib.gauges import stragglers
from course_lib.gauges.own_work import is_slow, slowest_ratio


def noisy(steps, ranks, spread=0.15):
    draw = random.Random(0)
    return [[1 + spread * (2 * draw.random() - 1) for _ in range(ranks)] for _ in range(steps)]


def slower(steps, rank, factor, only=None):
    return [
        [own * (factor if r == rank and (only is None or k in only) else 1) for r, own in enumerate(step)]
        for k, step in enumerate(steps)
    ]


def test_a_slow_rank_is_named_with_its_ratio():
    (found,) = stragglers([[0.02, 0.02, 0.05, 0.02]] * 30)
    assert found.rank == 2 and found.ratio == pytest.approx(2.5) and found.share == 1 and found.own_s == 0.05


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_noise_hides_no_straggler(ranks):
    assert [one.rank for one in stragglers(slower(noisy(40, ranks), 1, 1.6))] == [1]


def test_two_are_told_slowest_first():
    steps = slower(slower(noisy(40, 8), 6, 1.5), 3, 2.0)
    assert [one.rank for one in stragglers(steps)] == [3, 6]


@pytest.mark.parametrize(
    "steps",
    [
        noisy(40, 8),
        slower(noisy(40, 4), 2, 30, only={7}),  # one slow step: a checkpoint, or a garbage collection
        slower(noisy(40, 4), 2, 3, only=set(range(0, 40, 4))),  # each fourth step
        [[9 * own for own in step] if k % 2 else step for k, step in enumerate(noisy(40, 4))],  # all of them, together
        slower(noisy(40, 4, spread=0.02), 2, 1.1),  # less than anybody would look for
        [[1.0]] * 5,
        [],
    ],
)
def test_who_is_no_straggler_is_not_named(steps):
    assert stragglers(steps) == []


def test_the_ratio_is_the_readers():
    steps = slower(noisy(40, 4, spread=0.02), 2, 1.1)
    assert [one.rank for one in stragglers(steps, ratio=1.05)] == [2]


def test_a_step_s_slowest_rank_has_a_ratio_as_the_straggler_has():
    steps = slower(noisy(1, 5), 3, 4.0)
    assert slowest_ratio(steps[0]) == stragglers(steps)[0].ratio and is_slow(3, steps[0]) and not is_slow(1, steps[0])
    assert [slowest_ratio(step) for step in ([2, 2], [0, 0], [0, 1], [3, 1])] == [1, 1, math.inf, 3]


def test_a_step_without_a_rank_is_refused():
    with pytest.raises(ValueError, match="^stragglers: steps of 1, 2 ranks; a row is a step and has a number of each"):
        stragglers([[1.0, 2.0], [1.0]])
