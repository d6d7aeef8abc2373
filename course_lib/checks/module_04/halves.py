"""04.1: model parallelism by hand: two ranks, one half of a model each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import comm
from course_lib.checks.kit import models
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.scene import Scene
from course_lib.checks.kit.spec import FP32, Level
from course_lib.checks.kit.step import ALL_ZEROS, Words, step_exercise
from course_lib.parallel.pipelines.stages import cut


@dataclass(frozen=True, kw_only=True)
class Halves:
    """A 6-width-2 perceptron with GELU, cut before its second layer, and a batch of so many rows."""

    rows: int = 8
    width: int = 4
    look: bool = False
    world_size: int = 2

    def __str__(self) -> str:
        return f"2 ranks, a 6-{self.width}-2 MLP, {plural(self.rows, 'row')}"


def build(width: int, seed: int) -> nn.Sequential:
    """The whole model."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, second = nn.Linear(models.IN, width), nn.Linear(width, models.OUT)
    return nn.Sequential(OrderedDict(layer1=first, activation=nn.GELU(), layer2=second))


def _scene(case: Halves, seed: int) -> Scene:
    """The same on both ranks."""
    generator = torch.Generator().manual_seed(seed * 1009 + case.rows)
    model, (inputs, targets) = build(case.width, seed + 1), models.rows_of(case.rows, generator)
    return Scene(
        parts=cut(model, (2, 1)),
        arguments=lambda half, rank: (half, inputs, targets, (case.rows, case.width)),
        loss=lambda: F.cross_entropy(model(inputs), targets),
        told=(1,),
    )


def train_half(
    half: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    shape: Sequence[int],
    *,
    first: Callable[[nn.Module], nn.Module] = lambda half: half,
    back: Callable[[Tensor], Any] = lambda x: x.grad,
    gradient: Callable[[Tensor], Tensor] = lambda found: found,
) -> float | None:
    """Right, unless a part is chosen otherwise."""
    if dist.get_rank() == 0:
        y = first(half)(inputs)
        comm.send(y.detach(), 1)
        y.backward(gradient(comm.recv(torch.empty(shape), 1)))
        return None
    x = comm.recv(torch.empty(shape), 0).requires_grad_()
    loss = F.cross_entropy(half(x), targets)
    loss.backward()
    comm.send(back(x), 0)
    return loss.item()


def passes_once(messages: int, rows: int, width: int) -> list[list[tuple[int, int]]]:
    """By rank and other rank: so many messages each way, of all rows in fp32."""
    one_way = (messages, FP32 * rows * width)
    return [[(0, 0), one_way], [one_way, (0, 0)]]


HALVES = step_exercise(
    key="04.1",
    title="a model on two ranks",
    scene=_scene,
    slips={
        "these are the gradients without the GELU: call half(inputs), not one of its layers": partial(
            train_half, first=lambda half: half.get_submodule("layer1")
        ),
        "these are the gradients with two GELUs, one after the other: half(inputs) has one in it": partial(
            train_half, first=lambda half: nn.Sequential(half, nn.GELU())
        ),
        "layer1's gradients are those for the *activation* in place of its gradient: send x.grad back, not x": partial(
            train_half, back=Tensor.detach
        ),
        "layer1's gradients are those of the sum of its outputs: give y.backward(...) what rank 1 sends back": partial(
            train_half, gradient=torch.ones_like
        ),
    },
    causes=(
        (lambda case: case.rows, "was the loss summed over the rows? F.cross_entropy takes their mean"),
        (
            lambda case: 1 / (case.rows * case.width),
            "y.backward(gradient) is all that rank 0 does: was a mean taken there?",
        ),
        ALL_ZEROS,
    ),
    sent=lambda case: passes_once(1, case.rows, case.width),
    words=Words(
        means="comm.send and comm.recv, not torch.distributed's own",
        traffic="the whole batch passes the cut once each way, in fp32",
    ),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(Halves(), Halves(rows=3)),
            praise="28 and 10 parameters, the gradients of one device",
        ),
        "bytes": Level(
            points=1, cases=(Halves(look=True),), praise="one message each way, as large as the activation at the cut"
        ),
        "edges": Level(
            points=1,
            cases=(Halves(rows=1, look=True), Halves(rows=5, width=7, look=True)),
            praise="right for one row, and for another width",
        ),
    },
    hints=(
        "Autograd ends where a rank ends. So at the cut the two ranks do its work: the activation travels forward, "
        "and the gradient of the loss with respect to it travels back.",
        "Rank 0 computes y = half(inputs) and sends y.detach(). Then it receives a tensor of y's shape, and gives "
        "it to y.backward(...).",
        "Rank 1 receives x = comm.recv(torch.empty(shape), 0), and calls x.requires_grad_() *before* half(x). Only "
        "then does loss.backward() leave x.grad, which goes back to rank 0 by comm.send(x.grad, 0).",
    ),
)
