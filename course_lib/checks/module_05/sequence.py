"""05.7: sequence parallelism: between the matrices each rank has some positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Parts, cut, generator, own_part, parts_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_05.linear import AVERAGE

NAMES = ("the output", "the norm weight's gradient", "w1's gradient", "w2's gradient", "x's gradient")
_EPS = 1e-5
_Way = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A sequence of so many positions on so many ranks."""

    world_size: int
    positions: int = 8
    hidden: int = 6
    ffn: int = 12
    look: bool = False

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'rank')}, {plural(self.positions, 'position')}, {self.ffn} hidden features"


def _drawn(case: Spread, seed: int) -> Parts:
    p, source = case.world_size, generator(seed, case.world_size, case.positions, case.hidden, case.ffn)
    shapes = (case.positions, case.hidden), (case.hidden,), (case.ffn, case.hidden), (case.hidden, case.ffn)
    inputs = [torch.randn(shape, generator=source) for shape in shapes]
    gradient = torch.randn(case.positions, case.hidden, generator=source)
    x, gain, w1, w2 = (each.clone().requires_grad_() for each in inputs)
    normed = F.rms_norm(x, gain.shape, gain, _EPS)
    y = x + F.gelu(normed @ w1.T) @ w2.T
    gx, g_gain, g1, g2, g_normed = torch.autograd.grad(y, (x, gain, w1, w2, normed), gradient)
    rows, columns = cut(inputs[2], p), cut(inputs[3], p, 1)
    positions = list(zip(cut(inputs[0], p), cut(gradient, p), strict=True))
    wanted = zip(cut(y.detach(), p), cut(g1, p), cut(g2, p, 1), cut(gx, p), strict=True)
    directions = F.rms_norm(inputs[0], gain.shape, None, _EPS) * g_normed
    return Parts(
        arguments=[
            (mine, inputs[1], rows[rank], columns[rank], g, case.positions) for rank, (mine, g) in enumerate(positions)
        ],
        wanted=[(out, g_gain, one, two, back) for out, one, two, back in wanted],
        terms=[{NAMES[1]: part.sum(0)} for part in cut(directions, p)],
        multiplications=6 * case.positions * case.hidden * -(-case.ffn // p),
        normalised=case.positions if p > 1 else 0,
    )


def _spread_block(
    x: Tensor,
    gain: Tensor,
    w1: Tensor,
    w2: Tensor,
    gradient: Tensor,
    length: int,
    *,
    shared: _Way = comm.all_reduce,
    left: _Way = comm.reduce_scatter,
    returned: Callable[[Tensor, Tensor, int], Tensor] | None = None,
    arrived: Callable[[Tensor, Tensor, int], Tensor] | None = None,
    straight: bool = True,
) -> tuple[Tensor, ...]:
    """Right, unless a part is chosen otherwise."""
    x, gain, w1, w2 = (each.detach().requires_grad_() for each in (x, gain, w1, w2))
    normed = F.rms_norm(x, gain.shape, gain, _EPS)
    whole = comm.all_gather(normed, length=length).requires_grad_()
    term = F.gelu(whole @ w1.T) @ w2.T
    y = x.detach() + left(term)
    sent = arrived(gradient, term, length) if arrived else comm.all_gather(gradient, length=length)
    back, g1, g2 = torch.autograd.grad(term, (whole, w1, w2), sent)
    mine = returned(back, x, length) if returned else comm.reduce_scatter(back)
    gx, g_gain = torch.autograd.grad(normed, (x, gain), mine)
    return y, shared(g_gain), g1, g2, gx + gradient if straight else gx


def _by_all_reduce(case: Spread, calls: Counter[str]) -> str:
    if calls["all_reduce"] > 1:
        return (
            "an all-reduce is a reduce-scatter and an all-gather in one, and here each half has its own place: "
            "gather before the first matrix, reduce-scatter after the second"
        )
    return "in forward one gather and one reduce-scatter, in backward the same again, and an all-reduce of one vector"


def _own_rows(whole: Tensor, x: Tensor, length: int) -> Tensor:
    return own_part(whole)


def _without_x(x: Tensor, *others: Any, straight: bool = True) -> tuple[Tensor, ...]:
    y, *gradients = _spread_block(x, *others, straight=straight)
    return y - x, *gradients


def _with_x_inside(x: Tensor, *others: Any) -> tuple[Tensor, ...]:
    y, *gradients = _spread_block(x, *others)
    return y + (dist.get_world_size() - 1) * x, *gradients


_SPREAD = parts_exercise(
    key="05.7",
    title="each rank some positions",
    names=NAMES,
    draw=_drawn,
    asked=lambda case: [
        *[Asked("all_gather", case.positions, case.hidden)] * 2,
        *[Asked("reduce_scatter", case.positions, case.hidden)] * 2,
        Asked("all_reduce", case.hidden),
    ],
    slips={
        "x's gradient lacks the way past the block: y = x + block(x), so y's gradient reaches x unchanged as well": (
            lambda *given: _spread_block(*given, straight=False)
        ),
        "the output is that of the block alone: y = x + block(x)": _without_x,
        "the output is that of the block alone, and x's gradient too: y = x + block(x)": (
            lambda *given: _without_x(*given, straight=False)
        ),
        "x was added before the reduce-scatter, once by every rank": _with_x_inside,
        "the ranks' terms of the output were averaged, and they add up": (
            lambda *given: _spread_block(*given, left=lambda term: comm.reduce_scatter(term, op=ReduceOp.AVG))
        ),
        "in backward each rank kept its own positions of its own term: the gathered input went into every rank's "
        "product, so the terms of all ranks add up": lambda *given: _spread_block(*given, returned=_own_rows),
    },
    advice=Advice(
        causes={NAMES[1]: (AVERAGE,)},
        traffic=_by_all_reduce,
        work="two products forward and four backward are enough, each with this rank's part of a matrix",
        norm="a norm looks at one position alone. Normalise this rank's positions first, and gather what comes out",
    ),
    levels={
        "values": Level(
            points=3,
            again=True,
            cases=(Spread(world_size=4), Spread(world_size=2)),
            praise="the block of one device",
        ),
        "calls": Level(
            points=1,
            cases=(Spread(world_size=2, look=True), Spread(world_size=4, ffn=16, look=True)),
            praise="the norm on a p-th of the positions, for the bytes of two all-reduces and one short vector",
        ),
        "edges": Level(
            points=1,
            cases=(
                Spread(world_size=3, positions=7, ffn=11, look=True),
                Spread(world_size=4, positions=6, look=True),
                Spread(world_size=1, positions=3, look=True),
            ),
            praise="right where positions and features do not divide, and on one rank",
        ),
    },
    hints=(
        "Where do the ranks have positions, and where features? At the one change a rank needs all positions, "
        "at the other it has a term of all of them, and keeps its own positions of the sum.",
        "comm.all_gather(part, length=length) puts positions together, comm.reduce_scatter(term) adds up and cuts. "
        "In backward each of the two becomes the other.",
        "Autograd does the rest in two pieces: torch.autograd.grad(term, (whole, w1, w2), ...) and "
        "torch.autograd.grad(normed, (x, gain), ...). `whole` is a new leaf: comm.all_gather(...).requires_grad_().",
        "The norm's weight is whole on every rank and has seen this rank's positions alone, so its gradient is a term.",
    ),
)
