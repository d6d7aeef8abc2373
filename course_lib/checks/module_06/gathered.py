"""06.5: a linear map whose weight is whole only while it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.checks.kit.meter import Meter
from course_lib.checks.kit.parts import Advice, Asked, Noted, Parts, Report, cut, generator, own_part, parts_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.kit.step import OF_SECOND_DIVISION, OF_SUM
from course_lib.comm import ledger

NAMES = ("the output", "x's gradient", "the piece's gradient")
_Way = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A weight on so many ranks, each with rows of its own; where memory counts, far larger than what messages take."""

    world_size: int
    ins: int = 12
    outs: int = 10
    rows: int = 2
    memory: bool = False
    look: bool = False

    def __str__(self) -> str:
        shape = f"a weight of ({self.outs}, {self.ins})"
        return f"{plural(self.world_size, 'rank')}, {plural(self.rows, 'row')} on each, {shape}"


def _drawn(case: Linear, seed: int) -> Parts:
    p, source = case.world_size, generator(seed, case.world_size, case.ins, case.outs, case.rows)
    weight = torch.randn(case.outs, case.ins, generator=source)
    xs = [torch.randn(case.rows, case.ins, generator=source) for _ in range(p)]
    gradients = [torch.randn(case.rows, case.outs, generator=source) for _ in range(p)]
    whole = [g.T @ x for g, x in zip(gradients, xs, strict=True)]
    pieces, mean = cut(weight.flatten(), p), cut((torch.stack(whole).sum(0) / p).flatten(), p)
    return Parts(
        arguments=[(x, piece, (case.outs, case.ins), g) for x, piece, g in zip(xs, pieces, gradients, strict=True)],
        wanted=[(x @ weight.T, g @ weight, own) for x, g, own in zip(xs, gradients, mean, strict=True)],
        drive=_drive,
    )


def _drive(answer: Any, x: Tensor, piece: Tensor, shape: tuple[int, int], gradient: Tensor) -> Any:
    """Runs on a rank: forward, a look at what is kept, backward. The first run only fills what `comm` keeps anyway."""
    with Meter() as meter:
        _forward(answer, x * 2, piece * 3, shape)[0].backward(gradient)
        ledger.clear()
        settled = meter.live_bytes(())
        y, *leaves = _forward(answer, x, piece, shape)
        kept = meter.live_bytes([y, *leaves], at_most=settled) - settled
        y.backward(gradient)
    return Noted((y, *(leaf.grad for leaf in leaves)), {"kept": kept})


def _forward(answer: Any, x: Tensor, piece: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    leaves = x.clone().requires_grad_(), piece.clone().requires_grad_()
    y = answer.apply(*leaves, shape)
    if not isinstance(y, Tensor):
        raise TypeError(f"forward returned {type(y).__name__}: return the output, a tensor")
    return y, *leaves


class _Gathered(torch.autograd.Function):
    """Right, unless a subclass says otherwise."""

    gather: Callable[[Tensor, tuple[int, int]], Tensor] = staticmethod(
        lambda piece, shape: comm.all_gather(piece, length=shape[0] * shape[1]).view(shape)
    )
    average: _Way = staticmethod(lambda row: comm.reduce_scatter(row) / dist.get_world_size())
    transposed = False

    @classmethod
    def forward(cls, ctx: Any, x: Tensor, piece: Tensor, shape: tuple[int, int]) -> Tensor:
        """With the whole weight."""
        ctx.save_for_backward(x, piece)
        ctx.shape = shape
        return x @ cls.gather(piece, shape).T

    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """With the whole weight once more."""
        x, piece = ctx.saved_tensors
        weight = cls.gather(piece, ctx.shape)
        whole = x.T @ gradient if cls.transposed else gradient.T @ x
        return gradient @ weight, cls.average(whole.flatten()), None


class _Transposed(_Gathered):
    """As if the weight were (in, out)."""

    transposed = True


def _with(average: _Way) -> type[_Gathered]:
    return type("_Averaging", (_Gathered,), {"average": staticmethod(average)})


def _kept_whole(case: Linear, reports: Sequence[Report]) -> str | None:
    whole = FP64 * case.ins * case.outs
    if not case.memory or (kept := max(report.notes["kept"] for report in reports)) < whole:
        return None
    found = f"right values, but {kept} bytes more than x, the piece and the output live on from forward to backward"
    return f"{found}: among them the whole weight, of {whole}. Save the piece, and gather once more in backward"


def _traffic(case: Linear, calls: Counter[str]) -> str:
    if calls["all_reduce"]:
        return "each rank needs its own piece of the gradient alone, which a reduce-scatter gives it for half the bytes"
    return "one gather in forward, one in backward, and one reduce-scatter of the weight's gradient"


_OWN_ROWS = "x's gradient belongs to this rank's rows alone, so no other rank adds to it"

_ONLY_WHILE = parts_exercise(
    key="06.5",
    title="whole only while it computes",
    names=NAMES,
    draw=_drawn,
    asked=lambda case: [
        *[Asked("all_gather", case.ins * case.outs)] * 2,
        Asked("reduce_scatter", case.ins * case.outs),
    ],
    slips={
        "the piece's gradient comes from this rank's own rows: nothing was averaged over the ranks": _with(own_part),
        "the piece was cut from the transposed gradient, x.T @ gradient. The weight is (out, in), and so is its "
        "gradient: gradient.T @ x": _Transposed,
        "rank r has the average of the piece of rank r + 1": _with(
            lambda row: (comm.all_reduce(row) / dist.get_world_size()).tensor_split(dist.get_world_size())[
                (dist.get_rank() + 1) % dist.get_world_size()
            ]
        ),
    },
    advice=Advice(
        causes={
            NAMES[1]: ((lambda case: 1 / case.world_size, _OWN_ROWS), (lambda case: case.world_size, _OWN_ROWS)),
            NAMES[2]: (OF_SUM, OF_SECOND_DIVISION),
        },
        traffic=_traffic,
        noted=_kept_whole,
    ),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(Linear(world_size=4), Linear(world_size=2)),
            praise="the output and the gradients of a layer that no rank owns",
        ),
        "memory": Level(
            points=2,
            cases=(
                Linear(world_size=2, ins=48, outs=40, memory=True),
                Linear(world_size=4, ins=40, outs=48, memory=True),
            ),
            praise="between forward and backward there is the piece, and nothing else of the weight",
        ),
        "edges": Level(
            points=1,
            cases=(
                Linear(world_size=3, ins=47, outs=41, memory=True, look=True),
                Linear(world_size=2, look=True),
                Linear(world_size=1, rows=1),
            ),
            praise="two gathers and one reduce-scatter, also where the row does not divide",
        ),
    },
    hints=(
        "What must backward know of forward? Two tensors, and one of them is small on purpose. Save these by "
        "ctx.save_for_backward(...), and what is no tensor as an attribute of ctx.",
        "Pieces may differ by one number, so comm.all_gather has to be told the length of the whole row. How long is "
        "it, and in which shape do you need it?",
        "Backward multiplies by the weight too, and nobody has kept it. After that it is one device's: write down the "
        "two gradients of y = x @ weight.T, with their shapes.",
        "Each rank now has a whole gradient of the weight, of its own rows, and wants one piece of the average. Which "
        "collective adds up and hands out pieces, and what does it not do?",
    ),
)
