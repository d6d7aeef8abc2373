"""08.7: layers to stages, so that the slowest stage is as fast as it can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import inf, isclose
from typing import Any, NamedTuple

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.said import wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.verify.numbers import whole_numbers

_Sizes = list[int]
_Paced = tuple[float, _Sizes]  # seconds of the slowest stage, and the layers of each
_HEAD = (9.0, 0.5)  # of a model whose head takes as long as some layers, and whose embedding takes hardly any time


class Layers(NamedTuple):
    """Seconds of each layer on a GPU of speed 1, and the speed of each stage's GPU."""

    seconds: list[float]
    speeds: list[float]

    def __str__(self) -> str:
        return f"{len(self.seconds)} layers on {len(self.speeds)} stages"

    def times(self, sizes: Sequence[int]) -> list[float]:
        """Seconds of each stage."""
        ends = [0, *accumulate(sizes)]
        parts = zip(pairwise(ends), self.speeds, strict=True)
        return [sum(self.seconds[first:end]) / speed for (first, end), speed in parts]

    def slowest(self, sizes: Sequence[int]) -> float:
        """What sets the pace."""
        return max(self.times(sizes))


def best(layers: Layers, *, least: int = 1, counted: int | None = None) -> _Sizes:
    """By dynamic programming from the last stage on: the layers of each stage.

    `least` is what a stage gets at least; stages from `counted` on take no time.
    """
    seconds, speeds = layers
    n, before = len(seconds), [0.0, *accumulate(seconds)]
    rest: list[_Paced] = [*[(inf, [])] * n, (0.0, [])]  # of the layers from each one on, on the stages so far

    def with_stage(first: int, speed: float) -> _Paced:
        ends = range(first + least, n + 1)
        ways = (
            (max((before[end] - before[first]) / speed, rest[end][0]), [end - first, *rest[end][1]]) for end in ends
        )
        return min(ways, key=lambda way: way[0], default=(inf, []))

    for stage in reversed(range(len(speeds))):
        speed = speeds[stage] if counted is None or stage < counted else inf
        rest = [with_stage(first, speed) for first in range(n + 1)]
    return rest[0][1]


def _equal(seconds: list[float], speeds: list[float]) -> _Sizes:
    each, more = divmod(len(seconds), len(speeds))
    return [each + (stage < more) for stage in range(len(speeds))]


def _filled(seconds: list[float], speeds: list[float], *, over: bool = False) -> _Sizes:
    """Fill each stage up to its fair share, the last one takes what is left; `over`: until the share is passed."""
    fair, sizes, first = sum(seconds) / sum(speeds), [], 0
    for stage, speed in enumerate(speeds[:-1]):
        most = len(seconds) - (len(speeds) - stage - 1)
        end = first + 1
        while end < most and sum(seconds[first : end + (not over)]) <= fair * speed:
            end += 1
        sizes.append(end - first)
        first = end
    return [*sizes, len(seconds) - first]


@dataclass(frozen=True, kw_only=True)
class LayersOfKinds:
    """So many layers and stages, for a seed: of what kinds they are."""

    text: str
    layers: int
    stages: int
    unlike: bool = False  # GPUs
    even: bool = False  # layers
    draws: int = 4  # so many records
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def records(self, seed: int) -> list[Layers]:
        """A small embedding, layers of some kinds, and a large head, unless layers are even."""
        draw = random.Random(1009 * seed + self.layers)
        return [self._one(draw) for _ in range(self.draws)]

    def _one(self, draw: random.Random) -> Layers:
        kinds = (4.0,) if self.even else (2.0, 3.0, 4.0, 7.0)
        seconds = [draw.choice(kinds) for _ in range(self.layers)]
        if not self.even and self.layers > 2:
            seconds[-1], seconds[0] = _HEAD
        speeds = [draw.choice((1.0, 2.5)) if self.unlike else 1.0 for _ in range(self.stages)]
        return Layers(seconds, speeds)


def _use(answer: Callable[..., Any], layers: Layers) -> _Sizes | str:
    """Runs on a rank; the type of what is no list of whole numbers."""
    return whole_numbers(answer(list(layers.seconds), list(layers.speeds)))


def _judge(layers: Layers, found: _Sizes | str) -> str | None:
    if isinstance(found, str):
        return wrong_kind(found, "the number of layers of each stage")
    if len(found) != len(layers.speeds):
        return f"{found} are {len(found)} stages, and there are {len(layers.speeds)}"
    if sum(found) != len(layers.seconds):
        return f"{_shown(found)} has {sum(found)} layers, and there are {len(layers.seconds)}"
    if min(found) < 1:
        return f"stage {found.index(min(found))} of {_shown(found)} has {min(found)} layers, and each needs one"
    wanted = best(layers)
    mine, least = layers.slowest(found), layers.slowest(wanted)
    if isclose(mine, least, rel_tol=1e-9) or mine < least:
        return None
    stage = layers.times(found).index(mine)
    return (
        f"with {_shown(found)} stage {stage} takes {mine:g} s, and {least:g} s are possible for the slowest one, "
        f"as with {_shown(wanted)}"
    )


def _shown(sizes: _Sizes) -> str:
    return str(sizes) if len(sizes) <= 8 else f"[{', '.join(map(str, sizes[:6]))}, ...]"


def _of_best(**other: Any) -> Callable[..., Any]:
    return lambda seconds, speeds: best(Layers(seconds, speeds), **other)


_LAYERS = asked_exercise(
    key="08.7",
    title="layers to stages",
    records=lambda case, seed: case.records(seed),
    use=_use,
    judge=_judge,
    large=lambda case: case.draws == 1,
    slips={
        "each stage has as many layers as the others. Layers differ, so their seconds count": _equal,
        "each stage was filled up to its fair share, and the last one had to take what was left": _filled,
        "each stage was filled until its fair share was passed, so it is above the share": partial(_filled, over=True),
        "the speeds were left out": lambda seconds, speeds: best(Layers(seconds, [1.0] * len(speeds))),
        "a stage's seconds were multiplied by its speed. A GPU of speed 2 takes half as long": (
            lambda seconds, speeds: best(Layers(seconds, [1 / speed for speed in speeds]))
        ),
        "the last stage has all that the others left over. Its seconds count, too: the slowest sets the pace": (
            lambda seconds, speeds: best(Layers(seconds, speeds), counted=len(speeds) - 1)
        ),
        "a stage is left without a layer. Each has one at least": _of_best(least=0),
        "that is the best order for the speeds turned round: the first speed is the first stage's": (
            lambda seconds, speeds: best(Layers(seconds, speeds[::-1]))
        ),
    },
    levels={
        "alike": Level(
            points=2,
            cases=(
                LayersOfKinds(text="alike GPUs", layers=9, stages=3),
                LayersOfKinds(text="more stages", layers=12, stages=5),
            ),
            praise="no cut is better: the slowest stage is as fast as it can be",
        ),
        "unlike": Level(
            points=2,
            again=True,
            cases=(
                LayersOfKinds(text="unlike GPUs", layers=10, stages=3, unlike=True),
                LayersOfKinds(text="more of them", layers=14, stages=5, unlike=True),
            ),
            praise="a faster GPU gets more layers, and none of them stays without",
        ),
        "edges": Level(
            points=1,
            cases=(
                LayersOfKinds(text="as many stages as layers", layers=5, stages=5, unlike=True),
                LayersOfKinds(text="one stage", layers=6, stages=1),
                LayersOfKinds(text="layers that are alike", layers=10, stages=4, even=True, unlike=True),
                LayersOfKinds(text="a large model", layers=128, stages=16, unlike=True, draws=1),
            ),
            praise="also for 128 layers on 16 stages, of whose cuts nobody could try all",
        ),
    },
    hints=(
        "Suppose that the first stage takes k layers. What is then the best for the others? It is the same question, "
        "with one stage and k layers less.",
        "So write best(first, stage): the smallest possible pace of the layers from `first` on, on the stages from "
        "`stage` on. It is the least, over the end of this stage, of max(its own seconds, best(end, stage + 1)).",
        "At the end: if no stage is left, the pace is 0 if no layer is left either, and infinite otherwise.",
        "Let best(...) return the sizes as well, and put functools.cache in front of it. Sums of seconds from one "
        "layer to another are differences of running sums.",
    ),
)
