"""03.3: shares with different numbers of targets, weighed so that the ranks compute the whole batch's gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import comm
from course_lib.checks.kit import models
from course_lib.checks.kit.models import Kind
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.scene import Scene
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import Words, causes_of_averages, step_exercise
from course_lib.training.batches import IGNORED


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How many targets count on each rank, out of `rows` rows each."""

    counted: tuple[int, ...]
    model: Kind = "gelu"
    rows: int = 6
    look: bool = False

    @property
    def world_size(self) -> int:
        return len(self.counted)

    def __str__(self) -> str:
        targets = ", ".join(map(str, self.counted))
        return f"{plural(self.world_size, 'rank')} with {targets} targets, {models.WORDS[self.model]}"


def _scene(case: Shares, seed: int) -> Scene:
    """Random inputs; some targets of each rank do not count."""
    p, model = case.world_size, models.build(case.model, seed)
    generator = torch.Generator().manual_seed(seed * 1009 + sum(case.counted) + p)
    inputs = torch.randn(p, case.rows, models.IN, generator=generator)
    targets = torch.randint(models.OUT, (p, case.rows), generator=generator)
    for mine, counted in zip(targets, case.counted, strict=True):
        mine[torch.randperm(case.rows, generator=generator)[counted:]] = IGNORED
    return Scene(
        parts=[model] * p,
        arguments=lambda model, rank: (model, inputs[rank], targets[rank]),
        loss=lambda: F.cross_entropy(model(inputs.flatten(0, 1)), targets.flatten()),
        alone=lambda rank: summed(model, inputs[rank], targets[rank]) / max(case.counted[rank], 1),
        told=range(p),
        tensors=True,
        rows=case.rows,
        share=case.rows,
    )


def summed(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of the targets that count."""
    return F.cross_entropy(model(inputs), targets, ignore_index=IGNORED, reduction="sum")


def _train_on_share(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    weight: Callable[[Tensor, float], float] = lambda targets, counted: dist.get_world_size() / counted,
) -> float:
    """Right, unless a part is chosen otherwise."""
    loss = summed(model, inputs, targets)
    mine = torch.stack([loss.detach(), number(targets).to(loss.dtype)])
    total, counted = comm.all_reduce(mine).tolist()
    (loss * weight(targets, counted)).backward()
    for p in models.trained(model).values():
        assert p.grad is not None
        comm.all_reduce_(p.grad, op=dist.ReduceOp.AVG)
    return float(total / counted)


def number(targets: Tensor) -> Tensor:
    """Of targets that count."""
    return (targets != IGNORED).sum()


def _means(case: Shares, trial: Trial) -> str:
    few, many = (case.counted.index(pick(case.counted)) for pick in (min, max))
    weighs = f"a target on rank {few} weighs {case.counted[many]}/{max(case.counted[few], 1)} times one on rank {many}"
    return f"these are the gradients of the mean of the ranks' means: {weighs}"


def _rows(case: Shares, trial: Trial) -> str:
    rows = case.world_size * case.rows
    return f"the sum was divided by the {rows} rows; {rows - sum(case.counted)} of them have no target"


_UNEVEN = step_exercise(
    key="03.3",
    title="unequal shares",
    scene=_scene,
    slips={
        _means: partial(_train_on_share, weight=lambda targets, counted: 1 / max(float(number(targets)), 1)),
        _rows: partial(_train_on_share, weight=lambda targets, counted: 1 / len(targets)),
    },
    causes=causes_of_averages(),
    words=Words(
        nan="a share without a target has no mean, but a sum of 0",
        loss="; sum over the ranks before you divide by all targets",
        too_much="each rank computes the loss of its own share; what travels is two numbers and the gradients",
    ),
    levels={
        "even": Level(
            points=1,
            cases=(Shares(counted=(6, 6)), Shares(counted=(5, 5, 5, 5), model="mlp")),
            praise="equal shares: the gradient and the loss of one device",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(Shares(counted=(6, 1)), Shares(counted=(2, 6, 3)), Shares(counted=(1, 5, 3, 6), model="tied")),
            praise="each target counts the same, on whichever rank it is",
        ),
        "edges": Level(
            points=2,
            cases=(
                Shares(counted=(4, 0, 2)),
                Shares(counted=(3, 5), model="frozen"),
                Shares(counted=(0, 3), model="tied"),
                Shares(counted=(4,)),
            ),
            praise="right with a rank that has no target, frozen and tied weights, and on one rank",
        ),
    },
    hints=(
        "The whole batch's loss is the sum of all ranks' losses over the number of all ranks' targets. So only a "
        "sum and a number have to travel, and the division comes after.",
        'F.cross_entropy(..., ignore_index=-100, reduction="sum") is this rank\'s sum, and it is 0 where no target '
        "counts. (targets != -100).sum() is its number. comm.all_reduce adds up each of them over the ranks. Give "
        "it summed.detach(), because numbers travel and their history does not.",
        "Let each rank divide its sum by the number of *all* targets. Then the ranks' gradients only have to be "
        "added up, but average_gradients also divides by world_size. By what do you multiply the loss so that this "
        "cancels?",
        "(summed * dist.get_world_size() / all_counted).backward() comes first, then average_gradients(model), and "
        "what you return is all_summed / all_counted.",
    ),
)
