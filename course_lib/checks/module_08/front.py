"""08.6: the Pareto front of time and memory, as places in a list of layouts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.said import wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.verify.numbers import whole_numbers

_FIVE = ((5.0, 60.0), (4.0, 70.0), (6.0, 65.0), (7.0, 40.0), (9.0, 55.0))
_TIES = (
    *((5.0, 60.0), (5.0, 50.0), (4.0, 70.0), (4.0, 80.0), (5.0, 50.0), (8.0, 50.0), (8.0, 30.0)),
    *((7.0, 40.0), (6.0, 40.0)),  # the slower one comes first
)
_MANY = 20_000


class Ways(NamedTuple):
    """Seconds of a step and GB of each layout."""

    seconds: list[float]
    gigabytes: list[float]

    def __str__(self) -> str:
        return ""

    def shown(self, place: int) -> str:
        """A layout as a learner reads it."""
        return f"place {place} ({self.seconds[place]:g} s, {self.gigabytes[place]:g} GB)"

    def beats(self, one: int, other: int) -> bool:
        """Whether one is at least as good in both, and better in one; of equals the first."""
        mine, theirs = self.at(one), self.at(other)
        return mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1] or (mine == theirs and one < other)

    def at(self, place: int) -> tuple[float, float]:
        """Seconds and GB."""
        return self.seconds[place], self.gigabytes[place]

    def front(self, strictly: bool = True, by_memory_alone: bool = False) -> list[int]:
        """By memory, each faster than all before it; not `strictly`: or as fast. Sorted by both, or by one alone."""
        kept: list[int] = []
        by = self.gigabytes if by_memory_alone else list(zip(self.gigabytes, self.seconds, strict=True))
        for place in sorted(range(len(self.seconds)), key=by.__getitem__):
            least = self.seconds[kept[-1]] if kept else float("inf")
            if self.seconds[place] < least or (not strictly and self.seconds[place] == least):
                kept.append(place)
        return kept


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Points that are written down, or so many drawn for a seed."""

    text: str
    points: Sequence[tuple[float, float]] = ()
    drawn: int = 0
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def ways(self, seed: int) -> list[Ways]:
        """One record. Of drawn layouts half lie on the front."""
        points = [(x + seed, y + 2 * seed) for x, y in self.points]
        if self.drawn:
            draw = random.Random(seed)
            points = [(1000 / (1 + n) + n % 2 * draw.random(), 10 + n) for n in range(self.drawn)]
            draw.shuffle(points)
        return [Ways([x for x, _ in points], [y for _, y in points])]


def _use(answer: Callable[..., Any], ways: Ways) -> list[int] | str:
    """Runs on a rank; the type of what is no list of whole numbers."""
    return whole_numbers(answer(*ways))


def _judge(ways: Ways, found: list[int] | str) -> str | None:
    if isinstance(found, str):
        return wrong_kind(found, "a list of places")
    want = ways.front()
    if outside := [place for place in found if place not in range(len(ways.seconds))]:
        return f"there is no place {outside[0]}: places count from 0"
    right, given = set(want), set(found)
    for place in found:
        if place not in right:
            better = next(other for other in want if ways.beats(other, place))
            if ways.at(better) == ways.at(place):
                return f"{ways.shown(place)} is as place {better} in both, and of equals the first one stays"
            return f"{ways.shown(place)} is in it, but {ways.shown(better)} beats it"
    if missing := [place for place in want if place not in given]:
        return f"{ways.shown(missing[0])} is missing, and no other layout beats it"
    if found != want:
        return (
            "the right places, but in another order: the smallest memory comes first"
            if len(found) == len(want)
            else "a place stands there twice"
        )
    return None


def _by(seconds: list[float], gigabytes: list[float], *, keep: Callable[[Ways, int, int], bool]) -> list[int]:
    """All places that no other one beats, by an own idea of beating."""
    ways = Ways(seconds, gigabytes)
    places = [
        place
        for place in range(len(seconds))
        if not any(other != place and keep(ways, other, place) for other in range(len(seconds)))
    ]
    return sorted(places, key=lambda place: gigabytes[place])


_FRONT = asked_exercise(
    key="08.6",
    title="the Pareto front",
    records=lambda case, seed: case.ways(seed),
    use=_use,
    judge=_judge,
    large=lambda case: case.drawn == _MANY,
    slips={
        "only what is worse in both is thrown out. A layout that is as fast and larger is beaten, too": partial(
            _by, keep=lambda ways, a, b: ways.seconds[a] < ways.seconds[b] and ways.gigabytes[a] < ways.gigabytes[b]
        ),
        "both of two equal layouts are gone. They do not beat each other, and the first one stays": partial(
            _by, keep=lambda ways, a, b: ways.seconds[a] <= ways.seconds[b] and ways.gigabytes[a] <= ways.gigabytes[b]
        ),
        "both of two equal layouts are there. The first one is enough": partial(
            _by, keep=lambda ways, a, b: ways.beats(a, b) and ways.at(a) != ways.at(b)
        ),
        "a layout that needs more memory and is just as fast was kept": (
            lambda seconds, gigabytes: Ways(seconds, gigabytes).front(strictly=False)
        ),
        "of layouts that need the same memory a slower one came first, and was kept: sort by (memory, seconds)": (
            lambda seconds, gigabytes: Ways(seconds, gigabytes).front(by_memory_alone=True)
        ),
        "that is the front of the slowest and largest: less is better in both": partial(
            _by, keep=lambda ways, a, b: ways.seconds[a] >= ways.seconds[b] and ways.gigabytes[a] >= ways.gigabytes[b]
        ),
        "the fastest one comes first here. Begin with the smallest memory": (
            lambda seconds, gigabytes: Ways(seconds, gigabytes).front()[::-1]
        ),
        "that is the fastest layout alone. A slower one that needs less memory is on the front, too": (
            lambda seconds, gigabytes: [min(range(len(seconds)), key=seconds.__getitem__)]
        ),
    },
    levels={
        "front": Level(
            points=2,
            cases=(Cloud(text="five layouts", points=_FIVE), Cloud(text="sixty layouts", drawn=60)),
            praise="each of them is the fastest that needs no more memory",
        ),
        "ties": Level(
            points=1,
            again=True,
            cases=(
                Cloud(text="layouts that tie", points=_TIES),
                Cloud(text="all alike", points=((3.0, 8.0),) * 4),
                Cloud(text="two of the same memory", points=((9.0, 60.0), (5.0, 60.0))),
            ),
            praise="what ties in one is beaten in the other, and of equals one stays",
        ),
        "edges": Level(
            points=1,
            cases=(
                Cloud(text="one layout", points=((3.0, 8.0),)),
                Cloud(text="a whole search", drawn=_MANY),
            ),
            praise="one sort, and one walk along it",
        ),
    },
    hints=(
        "Sort the places by memory. Walk from the smallest memory to the largest: when is a layout worth its memory?",
        "Only if it is faster than all before it. So remember the fastest time so far.",
        "Where two layouts need the same memory, the faster one must come first: sort by (memory, seconds). Python's "
        "sort leaves equals in their order.",
    ),
)
