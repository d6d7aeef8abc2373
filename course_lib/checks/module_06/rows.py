"""06.1: tensors side by side in one row, of which each rank keeps a piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.checks.kit.meter import Meter
from course_lib.checks.kit.parts import Advice, Asked, Noted, Parts, Report, generator, parts_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import FP64, Level

MLP = ((4, 6), (4,), (2, 4), (2,))
ODD: tuple[tuple[int, ...], ...] = ((3, 2), (1,), (5, 1, 1), (4,))
_TINY: tuple[tuple[int, ...], ...] = ((), (3,), (1, 1), (2,))
Cut = Callable[[Tensor, int], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Four tensors on so many ranks."""

    world_size: int
    shapes: tuple[tuple[int, ...], ...] = MLP
    gathers: bool = True  # else only the pieces are looked at
    memory: bool = False  # whether it is looked at
    look: bool = False

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'rank')}, tensors of {', '.join(map(str, self.shapes))}"

    @property
    def sizes(self) -> list[int]:
        """Numbers of each tensor."""
        return [prod(shape) for shape in self.shapes]

    def drawn(self, seed: int) -> list[Tensor]:
        """The whole tensors; of the longer ones a number is zero, which is no padding."""
        source = generator(seed, self.world_size, sum(self.sizes))
        found = [torch.randn(shape, generator=source) for shape in self.shapes]
        for x in found:
            x.view(-1)[1:2] = 0.0
        return found


def listed(found: Any, call: str, number: int) -> list[Tensor]:
    """What a method returned, if it is a list of so many tensors."""
    if not isinstance(found, list | tuple) or len(found) != number or not all(isinstance(x, Tensor) for x in found):
        what = f"{len(found)} things" if isinstance(found, list | tuple) else type(found).__name__
        raise TypeError(f"{call} returned {what}: it should be a list of {number} tensors, one for each that it got")
    return list(found)


LATER = tuple(f"tensor {number}, gathered after an update" for number in range(len(MLP)))
ROW_NAMES = (
    *(f"tensor {number}'s piece" for number in range(len(MLP))),
    *(f"tensor {number}, gathered" for number in range(len(MLP))),
    *LATER,
)


def _side_by_side(case: Tensors, seed: int) -> Parts:
    p, whole = case.world_size, case.drawn(seed)
    row = torch.cat([x.flatten() for x in whole])
    trained = torch.cat([part * (rank + 2) for rank, part in enumerate(row.tensor_split(p))])
    later = [part.view(shape) for part, shape in zip(trained.split(case.sizes), case.shapes, strict=True)]
    return Parts(
        arguments=[tuple(whole)] * p,
        wanted=[(*_Row(whole, rank=rank, p=p).pieces(), *whole, *later) for rank in range(p)],
        drive=(lambda answer, *tensors: use_pieces(answer, tensors)) if case.gathers else _cut_row,
    )


def _cut_row(answer: Callable[..., Any], *tensors: Tensor) -> tuple[Any, ...]:
    """Runs on a rank: only cut."""
    pieces = listed(answer([x.clone() for x in tensors]).pieces(), "pieces()", len(tensors))
    return (*pieces, *[None] * (len(ROW_NAMES) - len(pieces)))


def use_pieces(answer: Callable[..., Any], tensors: Sequence[Tensor], *calls: str) -> Noted:
    """Runs on a rank: cut, put together, train the pieces, put together again; twice a look at what is kept.

    `calls` are methods that are called besides, before anything is trained.
    """
    with Meter() as meter:
        copies = [x.clone() for x in tensors]
        one = answer(copies)
        del copies
        kept = meter.live_bytes(())
        pieces = listed(one.pieces(), "pieces()", len(tensors))
        first = [*(piece.detach().clone() for piece in pieces), *(getattr(one, call)() for call in calls)]
    whole = [x.detach().clone() for x in _gathered(one, meter, len(tensors))]
    later = meter.live_bytes(first, at_most=kept) - kept
    with torch.no_grad():
        for piece in pieces:
            piece.mul_(dist.get_rank() + 2)
    return Noted((*first, *whole, *listed(one.gather(), "gather()", len(tensors))), {"kept": kept, "later": later})


def _gathered(one: Any, meter: Meter, number: int) -> list[Tensor]:
    with meter:
        return listed(one.gather(), "gather()", number)


def _as_one_piece(row: Tensor, p: int) -> Sequence[Tensor]:
    return row.tensor_split(p)


class _Row:
    """Right, unless a part is chosen otherwise."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        cut: Cut = _as_one_piece,
        whose: Callable[[int, int], int] = lambda rank, p: rank,
        copies: bool = False,
        rank: int | None = None,
        p: int = 0,
    ) -> None:
        p, rank = p or dist.get_world_size(), dist.get_rank() if rank is None else rank
        self.shapes, self.sizes, self.copies = [x.shape for x in tensors], [x.numel() for x in tensors], copies
        parts, mine = cut(torch.cat([x.flatten() for x in tensors]), p), whose(rank, p)
        self.piece = parts[mine].clone() if mine < len(parts) else parts[0][:0].clone()
        self.first = sum(part.numel() for part in parts[:mine])

    def pieces(self) -> list[Tensor]:
        """Of each tensor what the piece has of it."""
        ends = [min(max(end - self.first, 0), len(self.piece)) for end in accumulate(self.sizes, initial=0)]
        found = [self.piece[start:end] for start, end in zip(ends, ends[1:], strict=False)]
        return [x.clone() for x in found] if self.copies else found

    def gather(self) -> list[Tensor]:
        """The whole tensors."""
        row = comm.all_gather(self.piece, length=sum(self.sizes))
        return [part.view(shape) for part, shape in zip(row.split(self.sizes), self.shapes, strict=True)]


class _EachByItself:
    """Every tensor is a row of its own."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.rows = [_Row([x]) for x in tensors]

    def pieces(self) -> list[Tensor]:
        """Of each tensor a p-th."""
        return [row.pieces()[0] for row in self.rows]

    def gather(self) -> list[Tensor]:
        """The whole tensors."""
        return [row.gather()[0] for row in self.rows]


class _Cards(_Row):
    """Rank r has the numbers r, r + p, r + 2p, ..."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        rank, p = dist.get_rank(), dist.get_world_size()
        begins = accumulate(self.sizes, initial=0)
        self.mine = [range((rank - begin) % p, size, p) for begin, size in zip(begins, self.sizes, strict=False)]
        self.tensors = [x.flatten() for x in tensors]

    def pieces(self) -> list[Tensor]:
        """Of each tensor every p-th number."""
        return [x[list(mine)] for x, mine in zip(self.tensors, self.mine, strict=True)]


def _padded(row: Tensor, p: int) -> Sequence[Tensor]:
    """Zeros behind the row, until p divides it."""
    return torch.cat([row, row.new_zeros(-len(row) % p)]).tensor_split(p)


class _ToTheEnd(_Row):
    """The row with its zeros: what is behind the last tensor counts as the last one's."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors, cut=_padded)
        total = sum(self.sizes)
        self.sizes[-1] += -total % dist.get_world_size()


class _NotCutOff(_Row):
    """Subtracts where its piece begins, and leaves what is below 0."""

    def pieces(self) -> list[Tensor]:
        """Slices from the back, where a number is negative."""
        ends = [end - self.first for end in accumulate(self.sizes, initial=0)]
        return [self.piece[start:end] for start, end in zip(ends, ends[1:], strict=False)]


class _EndsNotCutOff(_Row):
    """The same, with begins of at least 0."""

    def pieces(self) -> list[Tensor]:
        """Ends from the back, where they are negative."""
        ends = [end - self.first for end in accumulate(self.sizes, initial=0)]
        return [self.piece[max(start, 0) : end] for start, end in zip(ends, ends[1:], strict=False)]


def kept_whole(case: Tensors, reports: Sequence[Report]) -> str | None:
    """Rank 0's pieces are the largest."""
    if not case.memory:
        return None
    kept, later = (reports[0].notes[when] for when in ("kept", "later"))
    whole, mine = FP64 * sum(case.sizes), FP64 * sum(x.numel() for x in _pieces_of(reports[0], case))
    if kept >= whole + mine:
        return (
            f"right values, but rank 0 keeps {kept} bytes from here to the first gather, target {mine}: the whole "
            "tensors are still held beside its part; keep their shapes, not the tensors"
        )
    if kept >= whole:
        found = f"right values, but rank 0 keeps {kept} bytes from here to the first gather, target {mine}"
        return f"{found}: a slice is a view, and all that it was cut from stays behind it; keep a copy of it alone"
    if later >= whole:
        found = f"right values, but after gather() rank 0 still holds {later} bytes more than before it"
        return f"{found}: return the whole tensors and keep none of them, the next gather() makes them anew"
    return None


def _pieces_of(report: Report, case: Tensors) -> list[Tensor]:
    return [x for x in report.results[: len(case.shapes)] if isinstance(x, Tensor)]


_ONE_ROW = parts_exercise(
    key="06.1",
    title="one row, cut into pieces",
    names=ROW_NAMES,
    draw=_side_by_side,
    asked=lambda case: [Asked("all_gather", sum(case.sizes))] * 2 if case.gathers else [],
    only=lambda case: range(len(ROW_NAMES) if case.gathers else len(MLP)),
    slips={
        "each tensor was cut by itself. Here all of them are laid side by side in one row first, and the row is cut": (
            _EachByItself
        ),
        "the row was cut by torch.chunk, whose last piece is shorter than the others by more than one: 38 numbers on "
        "4 ranks are 10, 10, 10 and 8. tensor_split gives 10, 10, 9 and 9": partial(_Row, cut=Tensor.chunk),
        "there are zeros behind the last tensor, to make all pieces equally long. Pieces may differ by one here": (
            _ToTheEnd
        ),
        "each rank has the piece of the rank after it": partial(_Row, whose=lambda rank, p: (rank + 1) % p),
        "the pieces lie in the opposite order, rank 0's at the end": partial(_Row, whose=lambda rank, p: p - 1 - rank),
        "the row was dealt out like cards, every p-th number to a rank; a piece is a stretch of neighbours": _Cards,
        "a tensor may begin and end before this rank's piece, and in Python a slice's begin or end below 0 counts from "
        "the back: make it 0": _NotCutOff,
        "a tensor may end before this rank's piece, and in Python a slice's end below 0 counts from the back: make "
        "it 0, as the begin": _EndsNotCutOff,
        "what is written into the pieces is lost. Does pieces() return copies, where views are needed, or gather() "
        "something that was gathered before?": (partial(_Row, copies=True)),
    },
    advice=Advice(traffic="one all-gather of the whole row puts all tensors together", noted=kept_whole),
    levels={
        "pieces": Level(
            points=2,
            again=True,
            cases=(Tensors(world_size=4, gathers=False), Tensors(world_size=2, gathers=False)),
            praise="19 of the 38 numbers on each of two ranks, wherever one tensor ends and the next begins",
        ),
        "gather": Level(
            points=1,
            cases=(Tensors(world_size=4), Tensors(world_size=2)),
            praise="one call brings all tensors back, with what an optimizer made of the pieces",
        ),
        "memory": Level(
            points=1,
            cases=(Tensors(world_size=2, memory=True, look=True), Tensors(world_size=4, memory=True, look=True)),
            praise="a rank keeps its piece and no more, and asks the others once",
        ),
        "edges": Level(
            points=1,
            cases=(
                Tensors(world_size=3, shapes=ODD, memory=True, look=True),
                Tensors(world_size=4, shapes=_TINY, look=True),
                Tensors(world_size=1, shapes=ODD, look=True),
            ),
            praise="right where nothing divides, where a piece has nothing of a tensor, and on one rank",
        ),
    },
    hints=(
        "torch.cat([x.flatten() for x in tensors]) is the row. row.tensor_split(p)[rank] is this rank's piece.",
        "Where a tensor begins in the row is the sum of the sizes before it. Subtract where your piece begins, and cut "
        "off what is below 0 or beyond the piece's end: a[min(max(begin, 0), n):min(max(end, 0), n)].",
        "comm.all_gather(piece, length=...) puts the row together. row.split(sizes) takes it apart, and .view(shape) "
        "gives each part its shape.",
        "row.tensor_split(p)[rank] looks into the row's memory, which lives on as long as anybody looks. .clone() "
        "does not.",
    ),
)
