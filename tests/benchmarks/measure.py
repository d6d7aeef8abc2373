"""Pairs of times taken side by side, and what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from types import ModuleType

import cloudpickle


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The same work done by us and by a peer, in turn, in one run."""

    name: str
    ours_s: tuple[float, ...]  # by round
    peer_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """How many times faster we are: the median over rounds of the peer's time over ours."""
        return median(theirs / ours for ours, theirs in zip(self.ours_s, self.peer_s, strict=True))

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest round's ratio."""
        ratios = [theirs / ours for ours, theirs in zip(self.ours_s, self.peer_s, strict=True)]
        return min(ratios), max(ratios)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A figure held against its gate and its goal."""

    figure: str
    ratio: float
    gate: float
    goal: float

    @property
    def words(self) -> str:
        """Met or not."""
        reached = "goal met" if self.ratio >= self.goal else "gate met"
        return reached if self.ratio >= self.gate else "NOT MET"


def mean_ratio(comparisons: Sequence[Comparison]) -> float:
    """Geometric mean of the ratios."""
    return geometric_mean(comparison.ratio for comparison in comparisons)


def seconds_of(work: Callable[[], object], times: int = 1) -> float:
    """Seconds that `work` takes, on average over `times` calls."""
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


def in_turn(steps: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Each round's result of every step; every other round goes through them the other way round."""
    found: dict[str, list[float]] = {who: [] for who in steps}
    for turn in range(rounds):
        for who in steps if turn % 2 else reversed(steps):
            found[who].append(steps[who]())
    return found


def travel_along(*modules: ModuleType) -> None:
    """Let ranks, which cannot import these files, be sent what they define."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
