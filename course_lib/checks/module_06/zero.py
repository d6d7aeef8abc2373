"""06.3: ZeRO-1 on real ranks, with the norm of a gradient that nobody has whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Noted, Parts, Report, generator, own_part, parts_exercise
from course_lib.checks.kit.said import import_optimizers, plural
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import OF_SECOND_DIVISION, Cause
from course_lib.checks.kit.turns import Turns, not_in_each_step

NAMES = ("the row of weights", "the last norm before clipping")
# Gradients are so large that 1e-6 more in a norm, as PyTorch adds it, is less than rounding; so is Adam's own eps.
_ADAMW = {"lr": 0.25, "eps": 1e5, "weight_decay": 0.01}
_LARGE = 1e7
_OFTEN = 100.0  # no gradient has a norm of so many _LARGE
_ADAMW_KEEPS = 3  # the weight, and two moments


@dataclass(frozen=True, kw_only=True)
class Training:
    """So many weights, a few steps; `clip` is in units of the gradients' size."""

    world_size: int
    length: int = 38
    steps: int = 3
    clip: float = _OFTEN
    memory: bool = False
    look: bool = False

    def __str__(self) -> str:
        clipped = ", clipped" * (self.clip < _OFTEN)
        return f"{plural(self.world_size, 'rank')}, {self.length} weights, {plural(self.steps, 'step')}{clipped}"


def _adamw(parameters: Iterable[Tensor]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, **_ADAMW)  # type: ignore[arg-type]


def _drawn(case: Training, seed: int) -> Parts:
    p, source = case.world_size, generator(seed, case.world_size, case.length, case.steps)
    weights = torch.randn(case.length, generator=source)
    gradients = [[_LARGE * torch.randn(case.length, generator=source) for _ in range(case.steps)] for rank in range(p)]
    averages = [torch.stack(step).mean(0) for step in zip(*gradients, strict=True)]
    return Parts(
        arguments=[(weights, torch.stack(mine), case.clip * _LARGE) for mine in gradients],
        wanted=[_alone(weights, averages, case.clip * _LARGE)] * p,
        drive=_drive,
    )


def _alone(weights: Tensor, averages: Sequence[Tensor], max_norm: float) -> tuple[Tensor, Tensor]:
    """What one device makes of all gradients."""
    whole = torch.nn.Parameter(weights.clone())
    optimizer = _adamw([whole])
    for gradient in averages:
        norm = gradient.norm()
        whole.grad = gradient * min(1.0, max_norm / norm.item())
        optimizer.step()
    return whole.detach(), norm.reshape(1)


def _drive(answer: Callable[..., Any], weights: Tensor, gradients: Tensor, max_norm: float) -> Any:
    """Runs on a rank: count what the optimizers hold."""
    made: list[torch.optim.AdamW] = []
    turns = Turns()

    def make_optimizer(parameters: Iterable[Tensor]) -> torch.optim.AdamW:
        made.append(_adamw(parameters))
        turns.watch(made[-1])
        return made[-1]

    found = answer(weights, list(gradients), make_optimizer, max_norm)
    if not isinstance(found, tuple | list):
        return found
    held = sum(p.numel() for one in made for group in one.param_groups for p in group["params"])
    return Noted(tuple(found), {"held": held, **turns.notes()})


def _average(gradient: Tensor) -> Tensor:
    return comm.reduce_scatter(gradient) / dist.get_world_size()


def _squares(x: Tensor) -> Tensor:
    return x.square().sum().reshape(1)


def _norm(gradient: Tensor, mine: Tensor) -> Tensor:
    return comm.all_reduce(_squares(mine)).sqrt()


def _zero(
    weights: Tensor,
    gradients: Sequence[Tensor],
    make_optimizer: Callable[..., torch.optim.AdamW],
    max_norm: float,
    *,
    average: Callable[[Tensor], Tensor] = _average,
    norm_of: Callable[[Tensor, Tensor], Tensor] = _norm,
    only_last: bool = False,
    factor: Callable[[Tensor], Tensor] = lambda ratio: ratio.clamp(max=1.0),
    anew: bool = False,
    gathered: Callable[[Tensor, Tensor], Tensor] = lambda piece, old: comm.all_gather(piece, length=len(old)),
) -> tuple[Tensor, Tensor]:
    """Right, unless a part is chosen otherwise."""
    piece = torch.nn.Parameter(own_part(weights).clone())
    optimizer = make_optimizer([piece])
    whole = weights
    for gradient in gradients[-1:] if only_last else gradients:
        piece.grad = average(gradient)
        norm = norm_of(gradient, piece.grad)
        piece.grad *= factor(max_norm / norm)
        optimizer = make_optimizer([piece]) if anew else optimizer
        optimizer.step()
        whole = gathered(piece.detach(), whole)
    return whole, norm


def _only_mine(piece: Tensor, old: Tensor) -> Tensor:
    new = old.clone()
    own_part(new).copy_(piece)
    return new


def _noted(case: Training, reports: Sequence[Report]) -> str | None:
    """What the optimizers hold, and when the ranks talked; one alone need not talk."""
    if case.look and case.world_size > 1 and (when := not_in_each_step(reports[0].notes, case.steps)):
        return f"right weights, {when}"
    if not case.memory:
        return None
    for rank, report in enumerate(reports):
        held, limit = report.notes["held"], -(-(case.length - rank) // case.world_size)
        if not held:
            return f"right weights, but rank {rank} made no optimizer by make_optimizer, which is what is counted"
        if held > limit:
            found = f"right weights, but rank {rank}'s optimizer trains {held} numbers, so it keeps "
            return f"{found}{_ADAMW_KEEPS * held}: a rank needs {limit}, those of its piece"
    return None


def _traffic(case: Training, calls: Counter[str]) -> str:
    if calls["all_reduce"] > case.steps and calls["reduce_scatter"]:
        return f"{plural(case.steps, 'all-reduce')} of one number would do, for the norm in each step"
    if calls["all_reduce"] > case.steps:
        return "an all-reduce brings the whole sum to every rank, which needs its own piece alone: reduce-scatter"
    return "each step needs one reduce-scatter, one sum of a single number for the norm, and one all-gather"


_SUMMED: Cause = (
    lambda case: case.world_size,
    "that is of the sum over the ranks; the batch's gradient is their average",
)

_ZERO_1 = parts_exercise(
    key="06.3",
    title="ZeRO-1 with clipping",
    names=NAMES,
    draw=_drawn,
    asked=lambda case: [
        one
        for _ in range(case.steps)
        for one in (Asked("reduce_scatter", case.length), Asked("all_reduce", 1), Asked("all_gather", case.length))
    ],
    only=lambda case: range(1) if case.clip == _OFTEN and not case.look else range(2),
    known_by=0,
    slips={
        "the steps were made with the *sum* of the ranks' gradients; the batch's gradient is their average": (
            partial(_zero, average=comm.reduce_scatter)
        ),
        "each rank took its piece of its own gradient: nothing was averaged": partial(_zero, average=own_part),
        "the average was divided by the number of ranks once more": (
            partial(_zero, average=lambda gradient: _average(gradient) / dist.get_world_size())
        ),
        "each rank has its own piece new and the others' old: what the others trained was not gathered": (
            partial(_zero, gathered=_only_mine)
        ),
        "each rank clipped by the norm of its own piece. The norm of all gradients is the root of the sum of all "
        "ranks' squares": (partial(_zero, norm_of=lambda gradient, mine: _squares(mine).sqrt())),
        "the ranks' norms were averaged. Squares add up, norms do not": (
            partial(
                _zero, norm_of=lambda gradient, mine: comm.all_reduce(mine.norm().reshape(1)) / dist.get_world_size()
            )
        ),
        "the ranks' norms were added up. Squares add up, norms do not": (
            partial(_zero, norm_of=lambda gradient, mine: comm.all_reduce(mine.norm().reshape(1)))
        ),
        "each rank clipped by the norm of its own whole gradient, before any average": (
            partial(_zero, norm_of=lambda gradient, mine: gradient.norm().reshape(1))
        ),
        "clipped by the norm of the *sum* of the gradients. It is the average that is clipped": (
            partial(_zero, norm_of=lambda gradient, mine: _norm(gradient, mine) * dist.get_world_size())
        ),
        "the ranks' squares were averaged. They are of different numbers, so add them up": (
            partial(_zero, norm_of=lambda gradient, mine: _norm(gradient, mine) / dist.get_world_size() ** 0.5)
        ),
        "clipped by the largest of the pieces' norms. The norm of all is the root of the sum of all squares": (
            partial(
                _zero,
                norm_of=lambda gradient, mine: comm.all_reduce(mine.norm().reshape(1), op=dist.ReduceOp.MAX),
            )
        ),
        "nothing was clipped": partial(_zero, factor=torch.ones_like),
        "every gradient was multiplied by max_norm / norm, also where its norm is below max_norm": (
            partial(_zero, factor=lambda ratio: ratio)
        ),
        "each step had a new optimizer, whose moments begin at zero. Make one before all steps": (
            partial(_zero, anew=True)
        ),
        "the weights are those from before the first step: the trained pieces were not gathered": (
            partial(_zero, gathered=lambda piece, old: old)
        ),
        "only the last step was taken": partial(_zero, only_last=True),
    },
    advice=Advice(causes={NAMES[1]: (_SUMMED, OF_SECOND_DIVISION)}, traffic=_traffic, noted=_noted),
    warm_up=import_optimizers,
    levels={
        "weights": Level(
            points=2,
            again=True,
            cases=(Training(world_size=4), Training(world_size=2, length=12)),
            praise="the weights of one device, where each rank has trained a piece",
        ),
        "clipping": Level(
            points=1,
            cases=(Training(world_size=4, clip=1.0), Training(world_size=2, clip=2.0)),
            praise="one number from each rank is enough for the norm of all",
        ),
        "memory": Level(
            points=1,
            cases=(Training(world_size=4, memory=True), Training(world_size=3, length=13, memory=True)),
            praise="the optimizer has a piece, and so have its two moments",
        ),
        "edges": Level(
            points=1,
            cases=(
                Training(world_size=3, length=13, clip=1.5, look=True),
                Training(world_size=4, length=6, clip=2.0, memory=True, look=True),
                Training(world_size=1, length=5, clip=1.0),
            ),
            praise="in each step a reduce-scatter, one number and an all-gather; also where nothing divides",
        ),
    },
    hints=(
        "Adam remembers two moments of what it trains, from step to step. What should it train on this rank, and when "
        "must it be made? What it trains is a torch.nn.Parameter with memory of its own.",
        "A rank updates one piece, so it needs one piece of the average. Which collective adds up and hands out "
        "pieces? It adds: what is left to do?",
        "The norm is the root of the sum of all squares. Each number of the average lies on exactly one rank. So which "
        "single number does each rank have to say?",
        "Clip between the sum and the step. After the step each rank has one new piece and p - 1 old ones: who has the "
        "others, and how does comm.all_gather learn how long the whole is?",
    ),
)
