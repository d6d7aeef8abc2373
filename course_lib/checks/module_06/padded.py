"""06.2: tensors cut one by one, by whole rows, and padded so that every rank sends equally much, as FSDP2 does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Parts, parts_exercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_06.rows import LATER, MLP, ODD, Cut, Tensors, kept_whole, listed, use_pieces

_ROWS: tuple[tuple[int, ...], ...] = ((6, 3), (1,), (5, 1, 2), (4,))

PADDED_NAMES = (
    *(f"the rows of tensor {number}" for number in range(len(MLP))),
    "the buffer",
    *(f"tensor {number}, gathered" for number in range(len(MLP))),
    *LATER,
)


def _tensor_by_tensor(case: Tensors, seed: int) -> Parts:
    p, whole = case.world_size, case.drawn(seed)
    ranks = [_Padded(whole, rank=rank, p=p) for rank in range(p)]
    later = [torch.cat([part * (rank + 2) for rank, part in enumerate(x.chunk(p))]) for x in whole]
    return Parts(
        arguments=[tuple(whole)] * p,
        wanted=[(*one.pieces(), one.buffer(), *whole, *later) for one in ranks],
        drive=(lambda answer, *tensors: use_pieces(answer, tensors, "buffer")) if case.gathers else _cut_padded,
    )


def _cut_padded(answer: Callable[..., Any], *tensors: Tensor) -> tuple[Any, ...]:
    """Runs on a rank: no gather yet."""
    one, number = answer([x.clone() for x in tensors]), len(tensors)
    return (*listed(one.pieces(), "pieces()", number), one.buffer(), *[None] * len(PADDED_NAMES[number + 1 :]))


def _with_padding(case: Tensors) -> int:
    """Numbers in the buffers of all ranks."""
    p = case.world_size
    return p * sum(-(-shape[0] // p) * prod(shape[1:]) for shape in case.shapes)


class _Padded:
    """Right, unless a part is chosen otherwise."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        cut: Cut = Tensor.chunk,
        in_turn: bool = False,
        padding: float = 0.0,
        rank: int | None = None,
        p: int = 0,
    ) -> None:
        self.p, self.rank = p or dist.get_world_size(), dist.get_rank() if rank is None else rank
        self.shapes, self.in_turn, self.padding = [x.shape for x in tensors], in_turn, padding
        parts = [cut(x, self.p) for x in tensors]
        self.mine = [(part[self.rank] if self.rank < len(part) else part[0][:0]).clone() for part in parts]
        self.lengths = [-(-shape[0] // self.p) * prod(shape[1:]) for shape in self.shapes]

    def pieces(self) -> list[Tensor]:
        """This rank's rows."""
        return self.mine

    def buffer(self) -> Tensor:
        """All pieces, each as long as the longest rank's."""
        full = [
            torch.cat([x.flatten(), x.new_full((length - x.numel(),), self.padding)])
            for x, length in zip(self.mine, self.lengths, strict=True)
        ]
        return torch.cat(full)

    def gather(self) -> list[Tensor]:
        """The whole tensors, from every rank's stretch of the buffer."""
        row = comm.all_gather(self.buffer())
        if self.in_turn:
            parts = list(row.split([self.p * length for length in self.lengths]))
        else:
            columns = row.view(self.p, -1).split(self.lengths, 1)
            parts = [column.flatten() for column in columns]
        return [part[: prod(shape)].view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class _ZerosAtTheEnd(_Padded):
    """Rows of all tensors, and behind them what is missing."""

    def buffer(self) -> Tensor:
        """As long as it should be."""
        rows = torch.cat([x.flatten() for x in self.mine])
        return torch.cat([rows, rows.new_zeros(sum(self.lengths) - len(rows))])


class _NoColumns(_Padded):
    """Takes the gathered row apart by the tensors' own sizes."""

    def gather(self) -> list[Tensor]:
        """The right shapes."""
        row = comm.all_gather(self.buffer())
        parts = row[: sum(map(prod, self.shapes))].split([prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class _OldBuffer(_Padded):
    """Makes the buffer once."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        self.made = super().buffer()

    def buffer(self) -> Tensor:
        """What it was."""
        return self.made


_BY_TENSOR = parts_exercise(
    key="06.2",
    title="tensor by tensor, with padding",
    names=PADDED_NAMES,
    draw=_tensor_by_tensor,
    asked=lambda case: [Asked("all_gather", _with_padding(case))] * 2 if case.gathers else [],
    only=lambda case: range(len(PADDED_NAMES) if case.gathers else len(MLP) + 1),
    slips={
        "the rows were cut by tensor_split: 6 rows on 4 ranks are 2, 2, 1 and 1. torch.chunk gives 2, 2 and 2, and the "
        "last rank none": partial(_Padded, cut=Tensor.tensor_split),
        "the gathered row was read tensor after tensor. It holds rank after rank, and of each rank all tensors": (
            partial(_Padded, in_turn=True)
        ),
        "the padding is not zero": partial(_Padded, padding=1.0),
        "zeros stand at the buffer's end alone. Each tensor's rows have theirs right behind them, so that the tensor "
        "begins at the same place in every rank's buffer": _ZerosAtTheEnd,
        "the gathered row was read as if all tensors stood in it whole, one after the other. It holds rank after rank, "
        "and of each rank all tensors": _NoColumns,
        "the buffer holds what the pieces were at first. They have been trained since: put it together in each "
        "gather()": _OldBuffer,
    },
    advice=Advice(
        traffic="one all-gather of the buffer, which is equally long on every rank, brings all tensors",
        noted=kept_whole,
    ),
    levels={
        "pieces": Level(
            points=2,
            again=True,
            cases=(
                Tensors(world_size=4, shapes=_ROWS, gathers=False),
                Tensors(world_size=2, shapes=_ROWS, gathers=False),
            ),
            praise="rows of each tensor, and zeros behind them up to the longest rank's",
        ),
        "gather": Level(
            points=1,
            cases=(Tensors(world_size=4, shapes=_ROWS), Tensors(world_size=2)),
            praise="and back: what was padded is gone again",
        ),
        "calls": Level(
            points=1,
            cases=(
                Tensors(world_size=4, memory=True, look=True),
                Tensors(world_size=2, shapes=ODD, memory=True, look=True),
            ),
            praise="all tensors in one call, whose parts are equally long, and a rank keeps its own rows alone",
        ),
        "edges": Level(
            points=1,
            cases=(
                Tensors(world_size=3, look=True),
                Tensors(world_size=4, shapes=((9, 3), (1,), (3, 1, 2), (6,)), look=True),
                Tensors(world_size=1, shapes=ODD, look=True),
            ),
            praise="right where ranks have no row of a tensor at all, and on one rank",
        ),
    },
    hints=(
        "x.chunk(p) may give fewer than p parts. A rank beyond them has no rows: x[:0].",
        "The longest piece has -(-len(x) // p) rows, rounded up. torch.cat with new_zeros makes every rank's as long.",
        "On p ranks the gathered row holds p buffers, one after the other. .view(p, -1) has a rank in each line, and "
        ".split(lengths, 1) has a tensor in each column.",
        "A column's padding stands behind the tensor's last row, so it is cut off at the end: [:x.numel()].",
    ),
)
