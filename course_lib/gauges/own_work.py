"""Which rank is slow: only its own work tells, for in a step that ends with an all-reduce all ranks take equally long.

A rank's own work is the time before it waits for others: what it computes, reads and writes, without any collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import median, median_low
from typing import NamedTuple

from course_lib.errors import four_parts

SLOW = 1.2  # times the ranks' median: machines of one kind differ by some per cent


class Straggler(NamedTuple):
    """A rank that is slow step after step. `share` is that of the steps in which it was above the ratio asked for."""

    rank: int
    own_s: float  # the median over its steps
    ratio: float  # to the median of the ranks
    share: float


def stragglers(own_s: Sequence[Sequence[float]], ratio: float = SLOW) -> list[Straggler]:
    """The slow ranks of `own_s[step][rank]`, slowest first; empty if there is none.

    A rank is named if its median over the steps is above `ratio` times the median of the ranks, and in more than half
    of the steps its own time was above that step's. One slow step names nobody, nor does a step in which all were slow.
    Of an even number of ranks the median is the lower of the two in the middle: of two ranks the faster one.
    Raises: ValueError for steps of unlike numbers of ranks.
    """
    if len({len(step) for step in own_s}) > 1:
        counts = ", ".join(map(str, sorted({len(step) for step in own_s})))
        rule, way_out = "a row is a step and has a number of each rank", "leave out the steps that are not complete"
        raise ValueError(four_parts("stragglers", f"steps of {counts} ranks", rule, way_out))
    by_rank = list(zip(*own_s, strict=True))
    typical = [median(times) for times in by_rank]
    usual = median_low(typical) if typical else 0.0
    limits = [ratio * median_low(step) for step in own_s]
    found = []
    for rank, times in enumerate(by_rank):
        above = sum(own > limit for own, limit in zip(times, limits, strict=True)) / len(times)
        if typical[rank] > ratio * usual and above > 1 / 2:
            found.append(Straggler(rank, typical[rank], _over(typical[rank], usual), above))
    return sorted(found, key=lambda one: -one.ratio)


def slowest_ratio(own_s: Sequence[float]) -> float:
    """What the slowest rank of a step took, over what was usual in that step: never below 1, which is all alike."""
    return _over(max(own_s), median_low(own_s))


def is_slow(rank: int, own_s: Sequence[float]) -> bool:
    """Whether a rank was slow in this one step; only many of them make a straggler."""
    return own_s[rank] > SLOW * median_low(own_s)


def _over(own: float, usual: float) -> float:
    return own / usual if usual else inf if own else 1.0
