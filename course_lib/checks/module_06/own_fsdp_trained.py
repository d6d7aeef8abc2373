"""What 06.11 must end at: the same training in one process, which rounds at the same places; and what mistakes give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors
from course_lib.checks.kit.script import Start

BLOCKS, MICRO_BATCHES, STEPS = 3, 2, 3
_WIDTH, _HIDDEN = 10, 26  # neither divides by 4, nor do the 3 classes, of which one rank has none
_INPUTS, _CLASSES, _ROWS = 6, 3, 32


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _HIDDEN), nn.Linear(_HIDDEN, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def make_model() -> nn.Sequential:
    """The one that stands in the learner's file."""
    return nn.Sequential(nn.Linear(_INPUTS, _WIDTH), *(Residual() for _ in range(BLOCKS)), nn.Linear(_WIDTH, _CLASSES))


def make_task(case: Start, seed: int) -> dict[str, Any]:
    """Weights, batches, an optimizer, and whether a unit is kept whole for the time of a step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 31)
        weights = make_model().state_dict()
        batches = [(torch.randn(_ROWS, _INPUTS), torch.randint(_CLASSES, (_ROWS,))) for _ in range(STEPS)]
    keep = case.look == "kept"
    optimizer, rate = ("AdamW", 0.01) if keep else ("SGD", 0.5)
    return {"weights": weights, "batches": batches, "optimizer": optimizer, "rate": rate, "keep": keep}


@dataclass(frozen=True, kw_only=True)
class How:
    """What of a training may be otherwise; as it stands, it is right."""

    low: torch.dtype = torch.bfloat16  # in which forward and backward compute
    kept: torch.dtype = torch.float32  # of the weights that the optimizer steps
    loss: torch.dtype = torch.float32
    micro_batches: int = MICRO_BATCHES  # by which a loss is divided
    last_only: bool = False  # one micro-batch's gradients are all there is
    stale: bool = False  # weights are gathered before the first step alone
    cleared: bool = True
    averaged: int = 1  # times that the ranks' sum is divided by their number
    part: Callable[[Tensor, int], Sequence[Tensor]] = torch.chunk  # which rows each rank takes


RIGHT = How()
WRONG = {
    "the loss is computed in bfloat16, as the scores come: is cross_entropy given scores.float()?": replace(
        RIGHT, loss=torch.bfloat16
    ),
    "the weights that the optimizer steps are in bfloat16; a policy gathers them in bfloat16 and leaves them as they "
    "are": replace(RIGHT, kept=torch.bfloat16),
    "too large by the micro-batches: each loss is a mean over one of them, and the batch's is the mean of both": (
        replace(RIGHT, micro_batches=1)
    ),
    "this is what the last micro-batches alone would teach: the gradients of the first are lost": replace(
        RIGHT, last_only=True
    ),
    "after the first step, forward and backward still compute with the weights of the start: a unit that is kept "
    "whole is not gathered anew; when is it freed?": replace(RIGHT, stale=True),
    "a gradient is left from the step before": replace(RIGHT, cleared=False),
    "this is what comes out if each process takes all rows of the batch; a rank's are part r of x.chunk(world_size)": (
        replace(RIGHT, part=lambda rows, ranks: [rows] * ranks)
    ),
    "this is what comes out if rank r takes every world_size-th row; its rows are part r of x.chunk(world_size), and "
    "what stands in a micro-batch decides what is rounded": replace(
        RIGHT, part=lambda rows, ranks: [rows[rank::ranks] for rank in range(ranks)]
    ),
    "too small by the number of processes: fully_shard averages over them, and the loss is divided once more": (
        replace(RIGHT, averaged=2)
    ),
}


def trained(task: dict[str, Any], ranks: int, how: How) -> Tensors:
    """The same training in one process.

    A float32 sum of a few gradients that were rounded to bfloat16 is exact in nearly every order, since their 8 bits
    leave 16 free. So what the ranks end at is the same to the last bits, though bfloat16 has hardly three digits.
    """
    model = make_model()
    model.load_state_dict(task["weights"])
    model.to(how.kept)
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    low = make_model().to(how.low)
    for number, (x, y) in enumerate(task["batches"]):
        if number == 0 or not how.stale:
            low.load_state_dict(model.state_dict())
        if how.cleared or number == 0:
            sums = [torch.zeros(weight.shape) for weight in model.parameters()]
        for rows, targets in zip(how.part(x, ranks), how.part(y, ranks), strict=True):
            pairs = list(zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True))
            for few, their in pairs[-1:] if how.last_only else pairs:
                low.zero_grad()
                loss = F.cross_entropy(low(few.to(how.low)).to(how.loss), their)
                (loss / how.micro_batches).backward()
                for total, one in zip(sums, low.parameters(), strict=True):
                    total += cast(Tensor, one.grad).float() / ranks**how.averaged
        for weight, total in zip(model.parameters(), sums, strict=True):
            weight.grad = total.to(how.kept)
        optimizer.step()
    return {name: weight.float() for name, weight in model.state_dict().items()}
