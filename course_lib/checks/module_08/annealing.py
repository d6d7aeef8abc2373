"""08.9: a search by simulated annealing over the layouts of one model, which must find the best of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from math import exp, inf
from random import Random
from typing import Any, NamedTuple

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level
from course_lib.config import load_model
from course_lib.hardware import load_cluster
from course_lib.planner.policy_search import search
from course_lib.planner.space import Job, Space

_AXES = ("tp", "pp", "cp", "micro_batch", "zero_stage", "recompute", "stages_per_rank")
_Way = tuple[int, ...]
_SEEDS, _FOUND, _STEPS = 12, 8, 4000
_UPHILL = 0.02  # of the proposals that were worse: a search that takes fewer takes none
_HOT, _COLD = 0.3, 1e-3  # of the first price


class Landscape:
    """The step time of every layout that is possible; beside a layout lie those that differ in one of its numbers."""

    def __init__(self, prices: Mapping[_Way, float]) -> None:
        self.prices = prices
        self.values = [sorted({way[axis] for way in prices}) for axis in range(len(_AXES))]
        self.start, self.least = max(prices, key=prices.__getitem__), min(prices.values())

    def price(self, way: _Way) -> float:
        """Seconds of a step; infinite for what is not possible."""
        return self.prices.get(way, inf)

    def neighbour(self, way: _Way, random: Random) -> _Way:
        """One of the layouts beside this one, by chance."""
        while True:
            axis = random.randrange(len(_AXES))
            place = self.values[axis].index(way[axis]) + random.choice((-1, 1))
            if 0 <= place < len(self.values[axis]):
                return (*way[:axis], self.values[axis][place], *way[axis + 1 :])


@cache
def landscape(nodes: int) -> Landscape:
    """Llama 3.1 8B on so many nodes of eight H100s."""
    cluster = replace(load_cluster("dgx_h100"), n_nodes=nodes)
    job = Job(model=load_model("llama3_1_8b"), cluster=cluster, batch=1024, sequence=8192)
    found = search(job, Space(zero_stage=(0, 1, 3), schedule=("1f1b", "interleaved")))
    columns = zip(*(getattr(found.policies, axis).tolist() for axis in _AXES), strict=True)
    prices: dict[_Way, float] = {}
    for way, seconds in zip(columns, found.step_s.tolist(), strict=True):
        prices.setdefault(tuple(map(int, way)), seconds)  # the fastest comes first
    return Landscape(prices)


class _Play(NamedTuple):
    """One run of a search: what it returned and saw, how often it asked, and where it went up."""

    returned: float | str  # a price; a text says what came instead
    seen: float
    calls: int
    steps: int  # neighbours that it asked for
    places: int  # different layouts whose neighbours these were
    offered: tuple[int, ...]  # worse layouts, possible ones, in the first and the second half
    taken: tuple[int, ...]
    dice: str = ""  # what is wrong with those that it threw


class _Dice(Random):
    """Python's generator, which counts how often it is asked; what a neighbour costs does not count."""

    asked = 0

    def random(self) -> float:
        self.asked += 1
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        self.asked += 1
        return super().getrandbits(k)


class SearchAsked(NamedTuple):
    """A landscape, the seed of the dice, and the steps that are allowed."""

    land: Landscape
    seed: int
    steps: int

    def __str__(self) -> str:
        return ""


class _Watched:
    """A landscape that notes what a search asks it."""

    def __init__(self, land: Landscape, steps: int, dice: _Dice) -> None:
        self.land, self.steps, self.dice, self.others = land, steps, dice, False
        self.seen, self.calls = inf, 0
        self.path: list[tuple[_Way, _Way]] = []  # each now and what was proposed

    def price(self, way: Any) -> float:
        self.calls += 1
        price = self.land.price(tuple(way))
        self.seen = min(self.seen, price)
        return price

    def neighbour(self, way: Any, random: Random) -> _Way:
        before = self.dice.asked
        found = self.land.neighbour(tuple(way), random)
        self.dice.asked = before
        self.others |= random is not self.dice
        self.path.append((tuple(way), found))
        return found

    def play(self, returned: Any) -> _Play:
        """What has happened."""
        offered, taken, half = [0, 0], [0, 0], max(1, len(self.path) // 2)
        steps = zip(self.path, [now for now, _ in self.path[1:]], strict=False)
        for number, ((now, other), then) in enumerate(steps):
            if self.land.price(now) < self.land.price(other) < inf:
                offered[number >= half] += 1
                taken[number >= half] += then == other
        is_way = isinstance(returned, tuple | list) and tuple(returned) in self.land.prices
        price = self.land.price(tuple(returned)) if is_way else repr(returned)[:60]
        places = len({now for now, _ in self.path})
        counts = price, self.seen, self.calls, len(self.path), places, tuple(offered), tuple(taken)
        return _Play(*counts, self._wrong_dice(sum(taken)))

    def _wrong_dice(self, taken: int) -> str:
        if self.others:
            return "neighbour(...) was given other dice than `random`"
        return (
            "worse layouts were taken, and `random` was never asked whether to" if taken and not self.dice.asked else ""
        )


def _use(answer: Callable[..., Any], asked: SearchAsked) -> list[_Play]:
    """Runs on a rank: the same search with other dice, again and again, and at last with the first ones."""
    plays, paths = [], []
    for number in (*range(_SEEDS), 0):
        watched = _Watched(asked.land, asked.steps, _Dice(1009 * asked.seed + number))
        returned = answer(asked.land.start, watched.neighbour, watched.price, asked.steps, watched.dice)
        plays.append(watched.play(returned))
        paths.append(watched.path)
    again = plays.pop()
    if again.dice or paths[0] == paths[-1]:
        return plays
    return [plays[0]._replace(dice="with the same dice it went another way the second time"), *plays[1:]]


def _judge(asked: SearchAsked, plays: list[_Play]) -> str | None:
    for play in plays:
        if isinstance(play.returned, str):
            return (
                f"returned {play.returned}, which is no possible layout: return one that neighbour(...) gave, or start"
            )
        if play.returned < play.seen:
            return f"returned a layout of {play.returned:.2f} s whose price it had never asked"
        if play.returned > play.seen:
            seen = f"it had seen one of {play.seen:.2f} s"
            return f"returned a layout of {play.returned:.2f} s, but {seen}: keep the best one"
        if play.calls > asked.steps + 1:
            return (
                f"price(...) was called {play.calls} times, target {asked.steps + 1}: keep the price of where you are"
            )
        if play.dice:
            return f"{play.dice}: draw every number from `random`, so that a search can be run again"
    hits = sum(play.returned == asked.land.least for play in plays)
    if asked.steps < _STEPS or hits >= _FOUND:
        return None
    return f"the best layout of all was found with {plural(hits, 'seed')} of {_SEEDS}, target {_FOUND}{_because(plays)}"


def _because(plays: list[_Play]) -> str:
    """What its steps reveal, behind a colon; empty if nothing is seen."""
    offered = [sum(play.offered[half] for play in plays) for half in (0, 1)]
    taken = [sum(play.taken[half] for play in plays) for half in (0, 1)]
    first, second = (took / max(1, were) for took, were in zip(taken, offered, strict=True))
    steps = sum(play.steps for play in plays) / len(plays)
    if steps < _STEPS / 2:
        return f": it asked for {steps:.0f} neighbours on average, and has {_STEPS} steps"
    if all(play.places == 1 for play in plays):
        return ": every neighbour was asked of the same layout. Ask for a neighbour of where you are now"
    if sum(offered) and first < _UPHILL:
        return ": it hardly ever went to a worse layout, so the first hollow that it came to was its last"
    if second > 0.9 * first:
        words = f"it went to {first:.0%} of the worse layouts in the first half, and to {second:.0%} in the second"
        return f": {words}. It has to cool down, and to take fewer and fewer of them"
    return f": it went to {first:.0%} of the worse layouts in the first half, and to {second:.0%} in the second"


def _annealed(
    start: _Way,
    neighbour: Callable[[_Way, Random], _Way],
    price: Callable[[_Way], float],
    steps: int,
    random: Random,
    *,
    cold: float = _COLD,
    takes: Callable[[float, Random], bool] = lambda worse, random: random.random() < exp(-worse),
    returns: Callable[[_Way, _Way], _Way] = lambda best, now: best,
) -> _Way:
    """Right, unless a part is chosen otherwise; `takes` gets how much worse a layout is, in temperatures."""
    now = best = start
    here = least = first = price(start)
    for step in range(steps):
        heat = first * _HOT * (cold / _HOT) ** (step / steps)
        other = neighbour(now, random)
        there = price(other)
        if there <= here or takes((there - here) / heat, random):
            now, here = other, there
        if here < least:
            best, least = now, here
    return returns(best, now)


@dataclass(frozen=True, kw_only=True)
class Cooling:
    """A landscape and so many steps; other dice for another seed."""

    text: str
    nodes: int = 16
    steps: int = _STEPS
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def asked(self, seed: int) -> list[SearchAsked]:
        """One."""
        return [SearchAsked(landscape(self.nodes), seed, self.steps)]


_SEARCH = Cooling(text=f"128 GPUs, {_STEPS} steps")

_ANNEALING = asked_exercise(
    key="08.9",
    title="search without looking at everything",
    records=lambda case, seed: case.asked(seed),
    use=_use,
    judge=_judge,
    quick=True,
    slips={
        "a worse layout is never taken, so the first hollow is the last. Take it with probability exp(-difference / "
        "temperature)": partial(_annealed, takes=lambda worse, random: False),
        "every layout is taken, however bad, as long as it is possible: that is a walk without any aim": partial(
            _annealed, takes=lambda worse, random: worse < inf
        ),
        "the temperature stays as high as at the beginning. It has to fall, a little in each step": partial(
            _annealed, cold=_HOT
        ),
        "that is where the search ended, not the best layout that it has seen": partial(
            _annealed, returns=lambda best, now: now
        ),
        "the layout where it started came back. Return the best one that was seen": partial(
            _annealed, returns=lambda best, now: landscape(16).start
        ),
    },
    levels={
        "steps": Level(
            points=1,
            cases=(Cooling(text="128 GPUs, 50 steps", steps=50), Cooling(text="a single step", steps=1)),
            praise="the best that was seen comes back, and each layout's price is asked once",
        ),
        "search": Level(
            points=3,
            again=True,
            cases=(_SEARCH,),
            praise="the best of all layouts, and most of them were never looked at",
        ),
    },
    hints=(
        "Keep three things: where you are now, its price, and the best layout so far. In each step ask for one "
        "neighbour and for its price.",
        "A better neighbour is always taken. A worse one with probability exp(-(its price - price now) / temperature): "
        "compare that with random.random().",
        "The temperature is in seconds, as prices are. Begin with a third of the first price, and end with a "
        "thousandth of it.",
        "Let it fall by the same factor in each step: heat = hot * (cold / hot) ** (step / steps). If a neighbour is "
        "not possible, its price is infinite, and exp gives 0 by itself.",
    ),
)
