"""05.4: a feed-forward block of two matrices, cut so that its ranks talk once in forward and once in backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Parts, cut, generator, parts_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_05.linear import AVERAGE, MEAN_OF_ROWS, SUMMED_TWICE, WHOLE_GRADIENT, Widths

NAMES = (
    "the output",
    "w1's gradient",
    "b1's gradient",
    "w2's gradient",
    "b2's gradient",
    "x's gradient",
)


class Block(Widths):
    """From `ins` features to `outs` hidden ones and back."""

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'rank')}, {plural(self.rows, 'row')}, {self.outs} hidden features"


def _drawn(case: Block, seed: int) -> Parts:
    p, source = case.world_size, generator(seed, case.world_size, case.ins, case.outs, case.rows)
    shapes = (case.rows, case.ins), (case.outs, case.ins), (case.outs,), (case.ins, case.outs), (case.ins,)
    inputs = [torch.randn(shape, generator=source) for shape in shapes]
    gradient = torch.randn(case.rows, case.ins, generator=source)
    x, w1, b1, w2, b2 = (each.clone().requires_grad_() for each in inputs)
    y = F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)
    gx, g1, gb1, g2, gb2 = torch.autograd.grad(y, (x, w1, b1, w2, b2), gradient)
    parts = zip(cut(g1, p), cut(gb1, p), cut(g2, p, 1), strict=True)
    return Parts(
        arguments=[(*inputs, gradient)] * p,
        wanted=[(y.detach(), *mine, gb2, gx) for mine in parts],
        terms=_terms(inputs, gradient, p),
        multiplications=6 * case.rows * case.ins * -(-case.outs // p),
    )


def _terms(inputs: list[Tensor], gradient: Tensor, p: int) -> list[dict[str, Tensor]]:
    """Of the output and of x's gradient."""
    x, w1, b1, w2, b2 = inputs
    found = []
    for rows, bias, columns in zip(cut(w1, p), cut(b1, p), cut(w2, p, 1), strict=True):
        mine = x.clone().requires_grad_()
        term = F.gelu(F.linear(mine, rows, bias)) @ columns.T
        (back,) = torch.autograd.grad(term, mine, gradient)
        found.append({NAMES[0]: term.detach() + b2, NAMES[5]: back})
    return found


def _cut_by_inputs(
    share: Callable[[int, int], float], *given: Tensor, afterwards: bool = False, some_outputs: bool = False
) -> tuple[Tensor, ...]:
    """The first matrix cut by its inputs, and GELU of a term and a `share` of b1, or b1 `afterwards`."""
    x, w1, b1, w2, b2, _ = given
    rank, p = dist.get_rank(), dist.get_world_size()
    term = x.tensor_split(p, 1)[rank] @ w1.tensor_split(p, 1)[rank].T
    hidden = comm.all_reduce(F.gelu(term + share(rank, p) * b1))
    y = F.linear(hidden + b1 if afterwards else hidden, w2, b2)
    return (y.tensor_split(p, 1)[rank] if some_outputs else y,)


def _forward_alone(
    leave: Callable[[Tensor, Tensor], Tensor],
    *given: Tensor,
    activation: Callable[[Tensor], Tensor] = F.gelu,
    share: float = 1,
) -> tuple[Tensor, ...]:
    """Right up to the ranks' terms of the output, with a `share` of b1."""
    x, w1, b1, w2, b2, _ = given
    rank, p = dist.get_rank(), dist.get_world_size()
    hidden = activation(F.linear(x, w1.tensor_split(p)[rank], share * b1.tensor_split(p)[rank]))
    return (leave(hidden @ w2.tensor_split(p, 1)[rank].T, b2),)


def _even_slices(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """Right where the ranks divide the hidden width."""
    rank, width = dist.get_rank(), len(w1) // dist.get_world_size()
    mine = slice(rank * width, (rank + 1) * width)
    leaves = [part.clone().requires_grad_() for part in (x, w1[mine], b1[mine], w2[:, mine])]
    term = F.gelu(F.linear(*leaves[:3])) @ leaves[3].T
    back, *own = torch.autograd.grad(term, leaves, gradient)
    return comm.all_reduce(term.detach()) + b2, *own, gradient.sum(0), comm.all_reduce(back)


def _where_the_sums_are(case: Block, calls: Counter[str]) -> str:
    if calls["all_gather"]:
        return "the hidden features need not be put together, because GELU acts on each of them alone"
    return "one sum of the outputs in forward and one of x's gradient in backward are enough for both matrices"


OF_A_TERM = (
    "w1 was cut by its inputs, so each rank had a term of every hidden number, and took GELU of that term. "
    "GELU of a sum is not the sum of GELUs: cut w1 so that a rank has some hidden numbers whole"
)

_PAIR = parts_exercise(
    key="05.4",
    title="two matrices and a GELU",
    names=NAMES,
    draw=_drawn,
    asked=lambda case: [Asked("all_reduce", case.rows * case.ins)] * 2,
    known_by=0,
    slips={
        OF_A_TERM: lambda *given: _cut_by_inputs(lambda rank, p: 1, *given),
        f"{OF_A_TERM}. Adding b1 on rank 0 alone does not mend that": (
            lambda *given: _cut_by_inputs(lambda rank, p: rank == 0, *given)
        ),
        f"{OF_A_TERM}. Adding a p-th of b1 on each rank does not mend that": (
            lambda *given: _cut_by_inputs(lambda rank, p: 1 / p, *given)
        ),
        f"{OF_A_TERM}. And b1 was not added": lambda *given: _cut_by_inputs(lambda rank, p: 0, *given),
        f"{OF_A_TERM}. And b1 belongs inside of GELU": (
            lambda *given: _cut_by_inputs(lambda rank, p: 0, *given, afterwards=True)
        ),
        f"{OF_A_TERM}. And the output's features are cut, where every rank needs them all": (
            lambda *given: _cut_by_inputs(lambda rank, p: 1, *given, some_outputs=True)
        ),
        "the output has b2 once from every rank, because it was added before the sum": (
            lambda *given: _forward_alone(lambda terms, bias: comm.all_reduce(terms + bias), *given)
        ),
        "the ranks' terms were averaged, and they add up to the output": (
            lambda *given: _forward_alone(lambda terms, bias: comm.all_reduce(terms, op=ReduceOp.AVG) + bias, *given)
        ),
        "the slices are even, which leaves some hidden numbers to nobody where the ranks do not divide them: cut as "
        "tensor_split does": _even_slices,
        "the output has no b2": lambda *given: _forward_alone(lambda terms, bias: comm.all_reduce(terms), *given),
        "the output is this rank's term, without b2: nothing was added up": (
            lambda *given: _forward_alone(lambda terms, bias: terms, *given)
        ),
        "the output is that of a block without b1": (
            lambda *given: _forward_alone(lambda terms, bias: comm.all_reduce(terms) + bias, *given, share=0)
        ),
        "only a p-th of b1 was added, and no other rank adds to these hidden numbers": (
            lambda *given: _forward_alone(
                lambda terms, bias: comm.all_reduce(terms) + bias, *given, share=1 / dist.get_world_size()
            )
        ),
        "the output is that of a block without the GELU": (
            lambda *given: _forward_alone(
                lambda terms, bias: comm.all_reduce(terms) + bias, *given, activation=lambda hidden: hidden
            )
        ),
    },
    advice=Advice(
        causes={
            **dict.fromkeys(NAMES[1:5], (MEAN_OF_ROWS, *WHOLE_GRADIENT)),
            NAMES[5]: (AVERAGE, SUMMED_TWICE),
        },
        traffic=_where_the_sums_are,
        work="cut both matrices, and multiply by this rank's part of each alone",
    ),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(Block(world_size=4), Block(world_size=2)),
            praise="the block of one device, and each rank has whole hidden numbers for its GELU",
        ),
        "calls": Level(
            points=2,
            cases=(Block(world_size=2, look=True), Block(world_size=4, ins=6, look=True)),
            praise="one all-reduce forward, one backward, and a p-th of the multiplications",
        ),
        "edges": Level(
            points=1,
            cases=(
                Block(world_size=3, outs=11, look=True),
                Block(world_size=4, outs=6, rows=1, look=True),
                Block(world_size=1, look=True),
            ),
            praise="right where the hidden width does not divide, for one row, and on one rank",
        ),
    },
    hints=(
        "GELU needs a hidden number whole. Which cut of w1 gives a rank some of them whole, without any message?",
        "A rank has some hidden features now. Its columns of w2 make a term of every output from them: that is 05.3.",
        "w1.tensor_split(p)[rank] are rows, w2.tensor_split(p, 1)[rank] are columns. b1 is cut as w1 is, "
        "and b2 stays whole.",
        "Let autograd go backward through what this rank did alone: make its term of the output from leaves with "
        "requires_grad, then torch.autograd.grad(term, leaves, gradient). What comes out for x is a term of a sum.",
    ),
)
