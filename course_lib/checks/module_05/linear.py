"""05.2 and 05.3: a linear map that is cut by its outputs, and one that is cut by its inputs, with backward by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Parts, cut, generator, parts_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import Cause

NAMES = ("the output", "the weight's gradient", "the bias's gradient", "x's gradient")
_Way = Callable[[Tensor], Tensor]
_Four = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Widths:
    """A linear map on so many ranks, and rows for it."""

    world_size: int
    ins: int = 8
    outs: int = 12
    rows: int = 5
    look: bool = False

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'rank')}, {plural(self.rows, 'row')}, from {self.ins} to {self.outs} features"


def _drawn(case: Widths, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias, and the gradient of the outputs."""
    source = generator(seed, case.world_size, case.ins, case.outs, case.rows)
    shapes = (case.rows, case.ins), (case.outs, case.ins), (case.outs,), (case.rows, case.outs)
    x, weight, bias, gradient = (torch.randn(shape, generator=source) for shape in shapes)
    return x, weight, bias, gradient


def _same(x: Tensor) -> Tensor:
    return x


def _averaged(case: Widths) -> float:
    """The ratio of an average to the sum."""
    return 1 / case.world_size


def _too_often(case: Widths) -> float:
    """The ratio of what all ranks have, added up over them."""
    return case.world_size


AVERAGE: Cause = (_averaged, "an average, where the ranks' terms add up to the whole")
SUMMED_TWICE: Cause = (_too_often, "added up twice? After the first sum every rank has the whole")
MEAN_OF_ROWS: Cause = (lambda case: 1 / case.rows, "a mean over the rows, where each row adds its share")
OWN_PART: Cause = (
    _averaged,
    "divided by the number of ranks? This part is this rank's alone, and no other rank adds to it",
)
WHOLE_GRADIENT: tuple[Cause, ...] = (
    (
        _too_often,
        "every rank has the whole gradient of the output already, so a sum over the ranks counts it once for each",
    ),
    (
        _averaged,
        "divided by the number of ranks? Every rank has the whole gradient of the output, which is right as it is",
    ),
)

# 05.2: by its outputs -----------------------------------------------------------------------------------------------


def _by_outputs(case: Widths, seed: int) -> Parts:
    x, weight, bias, gradient = _drawn(case, seed)
    p = case.world_size
    mine = list(zip(cut(weight, p), cut(bias, p), cut(gradient, p, 1), strict=True))
    y, gx = cut(x @ weight.T + bias, p, 1), gradient @ weight
    return Parts(
        arguments=[(x, *part) for part in mine],
        wanted=[(y[rank], g.T @ x, g.sum(0), gx) for rank, (_, _, g) in enumerate(mine)],
        terms=[{NAMES[3]: g @ w} for w, _, g in mine],
        multiplications=3 * case.rows * case.ins * -(-case.outs // p),
    )


def _column(
    x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor, *, own: _Way = _same, back: _Way = comm.all_reduce
) -> _Four:
    """Right, unless a part is chosen otherwise."""
    return x @ weight.T + bias, own(gradient.T @ x), own(gradient.sum(0)), back(gradient @ weight)


def _more_than_one_sum(case: Widths, calls: Counter[str]) -> str:
    if calls["all_gather"]:
        return "each rank has all that its own output needs; only x's gradient has a term on every rank"
    return "of all that backward makes, only x's gradient has a term on every rank"


_COLUMN = parts_exercise(
    key="05.2",
    title="a linear map cut by its outputs",
    names=NAMES,
    draw=_by_outputs,
    asked=lambda case: [Asked("all_reduce", case.rows * case.ins)],
    slips={
        "the weight's gradient was added up over the ranks, as in data parallelism; here each rank has other rows of "
        "the weight, and all of the batch": lambda *given: _column(*given, own=comm.all_reduce),
        "`gradient` was added up over the ranks, and on each of them it is that of other outputs: a sum mixes them": (
            lambda x, weight, bias, gradient: _column(x, weight, bias, comm.all_reduce(gradient))
        ),
        "the output has no bias": lambda x, weight, bias, gradient: (
            x @ weight.T,
            *_column(x, weight, bias, gradient)[1:],
        ),
        "x's gradient on rank 0 is whole and on the others a term of it: every rank goes on with the layer before": (
            lambda *given: _column(*given, back=lambda term: _on_first(term))
        ),
    },
    advice=Advice(
        causes={
            NAMES[1]: (MEAN_OF_ROWS, OWN_PART),
            NAMES[2]: (MEAN_OF_ROWS, OWN_PART),
            NAMES[3]: (AVERAGE, SUMMED_TWICE),
        },
        traffic=_more_than_one_sum,
        work="three products are enough, each with this rank's rows of the weight",
    ),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(Widths(world_size=4), Widths(world_size=2)),
            praise="forward needs no word from the others, and backward one sum",
        ),
        "calls": Level(
            points=1,
            cases=(Widths(world_size=4, look=True), Widths(world_size=2, ins=6, look=True)),
            praise="one all-reduce of x's gradient, and a p-th of the multiplications",
        ),
        "edges": Level(
            points=1,
            cases=(
                Widths(world_size=3, outs=11, look=True),
                Widths(world_size=4, outs=6, rows=1, look=True),
                Widths(world_size=1, look=True),
            ),
            praise="right where the outputs do not divide, for one row, and on one rank",
        ),
    },
    hints=(
        "On one device y = x @ weight.T + bias. The weight's gradient is gradient.T @ x, the bias's gradient.sum(0), "
        "and x's is gradient @ weight. Which of these four does a rank have whole with its own rows?",
        "x goes into every rank's product, so the loss depends on x by way of every rank.",
        "gradient @ weight sums over the outputs. This rank has some of them: comm.all_reduce adds the others' terms.",
    ),
)


def _on_first(term: Tensor) -> Tensor:
    whole = comm.reduce(term, dst=0)
    return term if whole is None else whole


# 05.3: by its inputs ------------------------------------------------------------------------------------------------


def _by_inputs(case: Widths, seed: int) -> Parts:
    x, weight, bias, gradient = _drawn(case, seed)
    p = case.world_size
    mine = list(zip(cut(x, p, 1), cut(weight, p, 1), strict=True))
    y = x @ weight.T + bias
    return Parts(
        arguments=[(a, w, bias, gradient) for a, w in mine],
        wanted=[(y, gradient.T @ a, gradient.sum(0), gradient @ w) for a, w in mine],
        terms=[{NAMES[0]: a @ w.T + bias} for a, w in mine],
        multiplications=3 * case.rows * case.outs * -(-case.ins // p),
    )


def _row(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    gradient: Tensor,
    *,
    leave: Callable[[Tensor, Tensor], Tensor] = lambda terms, bias: comm.all_reduce(terms) + bias,
    back: _Way = _same,
) -> _Four:
    """Right, unless a part is chosen otherwise."""
    return leave(x @ weight.T, bias), gradient.T @ x, gradient.sum(0), back(gradient @ weight)


_ROW = parts_exercise(
    key="05.3",
    title="a linear map cut by its inputs",
    names=NAMES,
    draw=_by_inputs,
    asked=lambda case: [Asked("all_reduce", case.rows * case.outs)],
    slips={
        "the output has the bias once from every rank, because it was added before the sum": (
            lambda *given: _row(*given, leave=lambda terms, bias: comm.all_reduce(terms + bias))
        ),
        "the output is whole on rank 0 alone, and every rank goes on with the next layer": (
            lambda *given: _row(*given, leave=lambda terms, bias: _on_first(terms) + bias)
        ),
        "the output has no bias": lambda *given: _row(*given, leave=lambda terms, bias: comm.all_reduce(terms)),
        "the output is this rank's term without the bias: nothing was added up": (
            lambda *given: _row(*given, leave=lambda terms, bias: terms)
        ),
        "the ranks' terms were averaged, and they add up to the output": (
            lambda *given: _row(*given, leave=lambda terms, bias: comm.all_reduce(terms + bias, op=ReduceOp.AVG))
        ),
        "x's gradient was added up over the ranks, and each of them has other features of x": (
            lambda *given: _row(*given, back=comm.all_reduce)
        ),
    },
    advice=Advice(
        causes={
            NAMES[1]: (MEAN_OF_ROWS, *WHOLE_GRADIENT),
            NAMES[2]: (MEAN_OF_ROWS, *WHOLE_GRADIENT),
            NAMES[3]: WHOLE_GRADIENT,
        },
        traffic="the output's terms are added up in forward, and backward needs no word from the others",
        work="three products are enough, each with this rank's columns of the weight",
    ),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(Widths(world_size=4), Widths(world_size=2)),
            praise="the terms of all ranks and the bias once",
        ),
        "calls": Level(
            points=1,
            cases=(Widths(world_size=4, look=True), Widths(world_size=2, outs=6, look=True)),
            praise="one all-reduce in forward and none in backward",
        ),
        "edges": Level(
            points=1,
            cases=(
                Widths(world_size=3, ins=10, look=True),
                Widths(world_size=4, ins=6, rows=1, look=True),
                Widths(world_size=1, look=True),
            ),
            praise="right where the inputs do not divide, for one row, and on one rank",
        ),
    },
    hints=(
        "x @ weight.T sums over the inputs, and this rank has some of them: so it has a term of every output.",
        "What is added before comm.all_reduce is added once by every rank.",
        "The output is the same on all ranks, so is its gradient. Each rank makes the gradient of its own columns of "
        "the weight and of its own features of x from it, alone.",
    ),
)
