"""06.6: gradients that are averaged and cut as soon as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Noted, Parts, Report, generator, own_part, parts_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import OF_SECOND_DIVISION, OF_SUM, Cause
from course_lib.models.mlp import MLP

PARAMETERS = ("layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias")
_ONLY_THE_FIRST_CAME = [False, False, False, True]  # backward begins at the end
_LOOKED_UP_TOO_LATE = ("size", "NoneType")  # another piece, or another parameter, whose gradient has gone
_LOOPED = (
    "the first gradient that came was reduced, and now the hook looks at another parameter or its piece: in a loop a "
    "function looks up its variables when it is called, and then they are the last ones: def f(p, piece=piece)"
)
NAMES = tuple(f"the gradient of {name}'s piece" for name in PARAMETERS)


@dataclass(frozen=True, kw_only=True)
class Backward:
    """A few micro-batches on so many ranks."""

    world_size: int
    micro_batches: int = 1
    rows: int = 3
    memory: bool = False
    look: bool = False

    def __str__(self) -> str:
        batches = plural(self.micro_batches, "micro-batch")
        return f"{plural(self.world_size, 'rank')}, {batches} of {plural(self.rows, 'row')}"


def _drawn(case: Backward, seed: int) -> Parts:
    p, m, source = case.world_size, case.micro_batches, generator(seed, case.world_size, case.micro_batches, case.rows)
    state = {name: torch.randn(x.shape, generator=source) for name, x in MLP().state_dict().items()}
    inputs = [torch.randn(m, case.rows, 6, generator=source) for _ in range(p)]
    targets = [torch.randn(m, case.rows, 2, generator=source) for _ in range(p)]
    model = _model(state)
    for mine in zip(inputs, targets, strict=True):
        for loss in _losses(model, *mine):
            (loss / p).backward()
    whole = [x.grad for x in model.parameters() if x.grad is not None]
    return Parts(
        arguments=[(state, *mine) for mine in zip(inputs, targets, strict=True)],
        wanted=[tuple(x.flatten().tensor_split(p)[rank].clone() for x in whole) for rank in range(p)],
        drive=_drive,
    )


def _model(state: dict[str, Tensor]) -> MLP:
    model = MLP(gelu=True)
    model.load_state_dict(state)
    return model


def _losses(model: nn.Module, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """Of each micro-batch, divided by their number, one after the other."""
    return ((model(x) - y).square().mean() / len(inputs) for x, y in zip(inputs, targets, strict=True))


def _drive(answer: Callable[..., Any], state: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Noted:
    """Runs on a rank: before the answer's hooks one that counts the whole gradients that are still in memory."""
    model, p, rank = _model(state), dist.get_world_size(), dist.get_rank()
    whole = list(model.parameters())
    pieces = [nn.Parameter(x.detach().flatten().tensor_split(p)[rank].clone()) for x in whole]
    came: set[StorageWeakRef] = set()
    most = 0

    def count(p: Tensor) -> None:
        nonlocal most
        assert p.grad is not None
        came.add(StorageWeakRef(p.grad.untyped_storage()))
        most = max(most, sum(not one.expired() for one in came))

    for x in whole:
        x.register_post_accumulate_grad_hook(count)
    answer(whole, pieces)
    for loss in _losses(model, inputs, targets):
        try:
            loss.backward()
        except (AttributeError, RuntimeError, TypeError) as error:
            fits = any(word in str(error) for word in _LOOKED_UP_TOO_LATE)
            if fits and [piece.grad is not None for piece in pieces] == _ONLY_THE_FIRST_CAME:
                error.args = (f"{error}; {_LOOPED}",)
            raise
    return Noted(tuple(piece.grad for piece in pieces), {"whole": most})


def _hooks(
    parameters: Sequence[Tensor],
    pieces: Sequence[Tensor],
    *,
    average: Callable[[Tensor], Tensor] = lambda row: comm.reduce_scatter(row) / dist.get_world_size(),
    adds: bool = True,
    drops: bool = True,
) -> None:
    """Right, unless a part is chosen otherwise."""

    def came(piece: Tensor, p: Tensor) -> None:
        assert p.grad is not None
        mine = average(p.grad.flatten())
        piece.grad = mine if piece.grad is None or not adds else piece.grad + mine
        if drops:
            p.grad = None

    for p, piece in zip(parameters, pieces, strict=True):
        p.register_post_accumulate_grad_hook(partial(came, piece))


def _left_whole(case: Backward, reports: Sequence[Report]) -> str | None:
    if not case.memory or (most := max(report.notes["whole"] for report in reports)) == 1:
        return None
    found = f"right gradients, but {most} whole gradients of {len(NAMES)} lived side by side in backward"
    return f"{found}: drop each as soon as its piece is there, p.grad = None, and keep it under no other name"


def _traffic(case: Backward, calls: Counter[str]) -> str:
    if calls["all_reduce"]:
        return "an all-reduce brings every rank the whole gradient, of which it keeps a piece: reduce-scatter"
    return "each gradient is reduced once in each backward"


_MICRO: Cause = (
    lambda case: 1 / case.micro_batches,
    "divided by the number of micro-batches? Each loss is divided by it already",
)

_WHEN_IT_COMES = parts_exercise(
    key="06.6",
    title="reduced as soon as it comes",
    names=NAMES,
    draw=_drawn,
    asked=lambda case: [Asked("reduce_scatter", n) for n in (24, 4, 8, 2) for _ in range(case.micro_batches)],
    slips={
        "every rank has its piece of its own gradient: nothing was averaged over the ranks": (
            partial(_hooks, average=lambda row: own_part(row).clone())
        ),
        "only the last micro-batch counts: a piece's gradient is set, where it should be added to": (
            partial(_hooks, adds=False)
        ),
        "an earlier micro-batch counts once more in each later one: backward adds to .grad, so what has been reduced "
        "must be dropped": partial(_hooks, drops=False),
    },
    advice=Advice(
        causes=dict.fromkeys(NAMES, (OF_SUM, OF_SECOND_DIVISION, _MICRO)), traffic=_traffic, noted=_left_whole
    ),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(Backward(world_size=4), Backward(world_size=2)),
            praise="each rank has its piece of the average",
        ),
        "micro-batches": Level(
            points=1,
            cases=(Backward(world_size=2, micro_batches=3), Backward(world_size=4, micro_batches=2)),
            praise="pieces add up over the micro-batches",
        ),
        "when": Level(
            points=1,
            cases=(Backward(world_size=2, memory=True), Backward(world_size=2, micro_batches=2, look=True)),
            praise="no two whole gradients ever lie side by side, and each is sent once in each backward",
        ),
        "edges": Level(
            points=1,
            cases=(
                Backward(world_size=3, micro_batches=2, memory=True, look=True),
                Backward(world_size=4, rows=1, look=True),
                Backward(world_size=1, micro_batches=2),
            ),
            praise="right where a rank has no number of a tensor, and on one rank",
        ),
    },
    hints=(
        "p.register_post_accumulate_grad_hook(f) calls f(p) in backward, as soon as p.grad is complete. Register one "
        "for each parameter; it has to know the piece that belongs to it.",
        "In the hook: comm.reduce_scatter(p.grad.flatten()) is this rank's piece of the sum over the ranks.",
        "backward *adds* to p.grad. What has been reduced must not be there any more when the next micro-batch comes: "
        "p.grad = None.",
        "piece.grad is None at first. Later on the new piece is added to it.",
        "In a loop a function looks up the loop's variables when it is called, and then they are the last ones. "
        "def f(p, piece=piece) takes the one of now.",
    ),
)
