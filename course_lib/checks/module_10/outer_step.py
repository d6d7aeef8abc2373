"""10.4: steps alone, then an outer step with Nesterov's momentum on what the ranks have come to: FedAvg and DiLoCo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Parts, generator, parts_exercise
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level

_NAMES = ("the weights", "the velocity")


@dataclass(frozen=True, kw_only=True)
class Alone:
    """So many rounds, of so many steps that each rank makes alone, and the outer optimizer's numbers."""

    world_size: int
    rounds: int = 3
    every: int = 4
    outer_rate: float = 1.0
    momentum: float = 0.0
    length: int = 5
    look: bool = False

    def __str__(self) -> str:
        outer = f", outer rate {self.outer_rate:g} and momentum {self.momentum:g}" * bool(self.momentum)
        rounds = f"{plural(self.rounds, 'round')} of {plural(self.every, 'step')}"
        return f"{plural(self.world_size, 'rank')}, {rounds}{outer}"


class _Bowl(NamedTuple):
    """A rank's own gradient: of a quadratic with a centre and curvatures of its own."""

    centre: Tensor
    curvatures: Tensor

    def __call__(self, w: Tensor) -> Tensor:
        return self.curvatures * (w - self.centre)


def _drawn(case: Alone, seed: int) -> Parts:
    source = generator(seed, case.world_size, case.rounds, case.every)
    start = torch.randn(case.length, generator=source)
    bowls = [
        _Bowl(torch.randn(case.length, generator=source), 0.5 + torch.rand(case.length, generator=source))
        for _ in range(case.world_size)
    ]
    numbers = (case.rounds, case.every, 0.1, case.outer_rate, case.momentum)
    wanted = _everyone(start, bowls, *numbers)
    return Parts(arguments=[(start, bowl, *numbers) for bowl in bowls], wanted=[wanted] * case.world_size)


def _everyone(
    start: Tensor, bowls: list[_Bowl], rounds: int, every: int, rate: float, outer_rate: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """What all ranks have in the end, in one process."""
    w, velocity = start, torch.zeros_like(start)
    for _ in range(rounds):
        ends = []
        for bowl in bowls:
            mine = w
            for _ in range(every):
                mine = mine - rate * bowl(mine)
            ends.append(mine)
        change = w - torch.stack(ends).mean(0)
        velocity = momentum * velocity + change
        w = w - outer_rate * (change + momentum * velocity)
    return w, velocity


def _on_ranks(
    w: Tensor,
    gradient: Callable[[Tensor], Tensor],
    rounds: int,
    every: int,
    rate: float,
    outer_rate: float,
    momentum: float,
    *,
    mistake: str = "",
) -> tuple[Tensor, Tensor]:
    """Runs on a rank: right, or with a mistake."""
    ranks, velocity, mine = dist.get_world_size(), torch.zeros_like(w), w
    for _ in range(rounds):
        mine = mine if mistake == "goes on" else w
        for _ in range(every - (mistake == "one less")):
            step = gradient(mine)
            mine = mine - rate * (comm.all_reduce(step) / ranks if mistake == "each step" else step)
        total = comm.all_reduce(mine)
        change = w - (mine if mistake == "in place" else total) / (1 if mistake == "sum" else ranks)
        change = {"sign": -change, "by rate": change / (rate * every), "own": w - mine}.get(mistake, change)
        velocity = (0 if mistake == "forgets" else momentum) * velocity + change
        if mistake == "dampened":
            velocity = velocity - momentum * change
        if mistake == "before":
            velocity = velocity + (outer_rate - 1) * change
        w = _outer(w, change, velocity, outer_rate, momentum, mistake)
    return w, velocity


def _outer(w: Tensor, change: Tensor, velocity: Tensor, outer_rate: float, momentum: float, mistake: str) -> Tensor:
    if mistake == "before":
        return w - (outer_rate * change + momentum * velocity)
    return w - {
        "heavy ball": outer_rate * velocity,
        "mean": change,
        "double": outer_rate * (velocity + momentum * velocity),
    }.get(mistake, outer_rate * (change + momentum * velocity))


def _traffic(case: Alone, calls: Counter[str]) -> str:
    if calls["all_reduce"] >= case.rounds * case.every:
        return "the ranks talk in each step, and once in a round is what this is about"
    return "the weights travel once in a round, and nothing else has to: what the velocity needs is the same everywhere"


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_on_ranks, mistake=mistake)


_SLIPS: Slips = {
    "the sign of the change is wrong. It stands in the place of a gradient, so it is the old weights minus the mean of "
    "the new ones: an optimizer goes against what it is given": _way("sign"),
    "each rank goes on from its own weights, and all are to go on from those after the outer step": _way("goes on"),
    "in each step the gradients are averaged. That is data parallelism, with an outer step on top": _way("each step"),
    "the ranks' weights are added up, and their mean is asked": _way("sum"),
    "each rank has taken its own change, so the ranks part. comm.all_reduce(x) returns the sum and leaves x as it is": (
        _way("own")
    ),
    "the weights that were divided are a rank's own. comm.all_reduce(x) returns the sum, and leaves x as it is": _way(
        "in place"
    ),
    "the outer optimizer goes by its velocity alone. With Nesterov's momentum it goes by the change plus momentum "
    "times the velocity, and the velocity has this change in it already": _way("heavy ball"),
    "the change is counted twice: it goes by the change plus momentum times the velocity": _way("double"),
    "the velocity begins with 0 in each round. It is kept from round to round": _way("forgets"),
    "the outer step is missing: the mean of the ranks' weights is where all go on": _way("mean"),
    "the change is divided by what all steps' rates come to. It is taken as it is": _way("by rate"),
    "the change goes into the velocity with 1 - momentum. It goes in whole": _way("dampened"),
    "the outer rate is in the velocity already. It belongs to the step": _way("before"),
    "each rank makes one step too few in a round": _way("one less"),
}

_OUTER = parts_exercise(
    key="10.4",
    title="steps alone, and an outer step",
    names=_NAMES,
    draw=_drawn,
    asked=lambda case: [Asked("all_reduce", case.length)] * case.rounds,
    slips=_SLIPS,
    advice=Advice(traffic=_traffic),
    levels={
        "average": Level(
            points=2,
            cases=(Alone(world_size=4), Alone(world_size=2, rounds=4, every=1)),
            praise="with an outer rate of 1 and no momentum all go on from the mean: that is FedAvg",
        ),
        "outer": Level(
            points=2,
            again=True,
            cases=(
                Alone(world_size=4, outer_rate=0.7, momentum=0.9),
                Alone(world_size=3, rounds=4, every=2, outer_rate=0.5, momentum=0.6),
            ),
            praise="an optimizer for the ranks' changes, and the same velocity on all of them: that is DiLoCo",
        ),
        "calls": Level(
            points=1,
            cases=(
                Alone(world_size=4, rounds=2, every=6, outer_rate=0.7, momentum=0.9, look=True),
                Alone(world_size=1, outer_rate=0.7, momentum=0.9, look=True),
            ),
            praise="one all-reduce of the weights in a round, so every further step in it is free of bytes",
        ),
    },
    hints=(
        "In each round: mine = w, then `every` times mine = mine - rate * gradient(mine). Nobody talks meanwhile.",
        "comm.all_reduce(mine) / world size is the mean of the ranks' weights. The change is w minus that mean.",
        "velocity = momentum * velocity + change. It is zeros before the first round, and never reset.",
        "The outer step with Nesterov's momentum: w = w - outer_rate * (change + momentum * velocity). All ranks do "
        "the same with the same numbers.",
    ),
)
