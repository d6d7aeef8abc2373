"""How one tensor is cut along the axes of a mesh, in PyTorch's words; no torch is needed to say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import NamedTuple

from course_lib.split import split_sizes

At = Mapping[str, int]  # a rank's coordinate on each axis of the mesh
Box = tuple[tuple[int, ...], tuple[int, ...]]  # in a tensor: where it begins, and its size, along each dim


class Cut:
    """Which of the parts that an axis makes of a tensor its ranks have.

    There are fewer parts than ranks where `copies` neighbours have the same one, or where each run of `parts`
    neighbours has all of them.
    """

    copies: int = 1
    parts: int | None = None

    def number_of_parts(self, size: int) -> int:
        """Of an axis with `size` ranks."""
        return self.parts or size // self.copies

    def part(self, rank: int, size: int) -> int:
        """The number of a rank's."""
        return rank // self.copies % self.number_of_parts(size)

    def is_first(self, rank: int) -> bool:
        """Whether no rank before it has the same part."""
        return rank % self.copies == 0 and (self.parts is None or rank < self.parts)

    def holders(self, rank: int, size: int) -> range:
        """The ranks with the same part."""
        if self.parts is not None:
            return range(rank % self.parts, size, self.parts)
        first = rank // self.copies * self.copies
        return range(first, first + self.copies)

    def one_of_each(self, rank: int, size: int) -> range:
        """Of each part one rank: that which lies among its holders as this rank does among its own."""
        if self.parts is None:
            return range(rank % self.copies, size, self.copies)
        first = rank // self.parts * self.parts
        return range(first, first + self.parts)


@dataclass(frozen=True)
class Shard(Cut):
    """The ranks of an axis share dim `dim` as `torch.tensor_split` cuts it: 7 rows over 3 ranks are 3, 2, 2.

    With `copies` there are fewer parts than ranks: so many neighbours have the same one. With `parts` each run of so
    many neighbours shares the dim, and the runs are copies. PyTorch's own class of this name cuts as `torch.chunk`
    does, which is `chunked`: 3, 3, 1.
    """

    dim: int
    copies: int = 1
    parts: int | None = None
    chunked: bool = False

    def span(self, length: int, rank: int, size: int) -> tuple[int, int]:
        """From where to where, of a dim's `length`, one of an axis' `size` ranks has it."""
        part, parts = self.part(rank, size), self.number_of_parts(size)
        if self.chunked:
            longest = -(-length // parts)
            return min(part * longest, length), min((part + 1) * longest, length)
        ends = [0, *accumulate(split_sizes(length, parts))]
        return ends[part], ends[part + 1]

    def __str__(self) -> str:
        words = [f"dim={self.dim}", *[f"copies={self.copies}"] * (self.copies > 1)]
        words += [f"parts={self.parts}"] * (self.parts is not None) + ["chunked"] * self.chunked
        return f"Shard({', '.join(words)})"


@dataclass(frozen=True)
class Replicate:
    """Each rank of an axis has all of it."""


@dataclass(frozen=True)
class Partial:
    """Each rank of an axis has a term of a sum: what a backward pass leaves in a gradient before it is added up."""


class Stretch(NamedTuple):
    """Of a row of `total` numbers, `length` from `start` on."""

    start: int
    length: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Flat(Cut):
    """A tensor as a stretch of one long row of numbers, of which every rank of an axis has a piece.

    The tensors of one row lie in it one behind the other, in the model's order. With `parts` there are fewer pieces
    than ranks: each run of so many neighbours shares the row among them. With `inner` axes the ranks along all of them
    share it as if they were one axis, the last the innermost.
    """

    axis: str
    row: str  # its name: tensors of one row are gathered together
    inner: tuple[str, ...] = ()
    parts: int | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """Those whose ranks share the row, the outermost first."""
        return (self.axis, *self.inner)

    def piece(self, stretch: Stretch, rank: int, size: int) -> slice:
        """Which of the tensor's numbers a rank has; they may be none."""
        ends, part = [0, *accumulate(split_sizes(stretch.total, self.number_of_parts(size)))], self.part(rank, size)
        first, last = (end - stretch.start for end in ends[part : part + 2])
        return slice(min(max(first, 0), stretch.length), min(max(last, 0), stretch.length))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one parameter or buffer lies. An axis that is not mentioned replicates it."""

    shape: tuple[int, ...]  # of the whole
    shard: Mapping[str, Shard] = field(default_factory=dict)  # by axis, in the order of cutting
    flat: Flat | None = None  # what is left after that, as numbers in a row
    owners: tuple[int, ...] | None = None  # coordinates on "pp"; None: all of them; several: tied over stages
    partial: frozenset[str] = frozenset()  # axes over which a backward leaves terms of the gradient's sum
    trained: bool = True  # neither frozen nor a buffer

    @property
    def cuts(self) -> dict[str, Cut]:
        """By axis how it is cut."""
        found: dict[str, Cut] = {**self.shard}
        if self.flat is not None:
            found |= dict.fromkeys(self.flat.axes, self.flat)
        return found

    @property
    def cut_along(self) -> frozenset[str]:
        """The axes whose ranks hold different parts of it, or not all of them a copy."""
        return frozenset([*self.cuts, *(["pp"] if self.owners is not None else [])])

    def is_held(self, at: At) -> bool:
        """Whether the rank at these coordinates has any of it."""
        return self.owners is None or at.get("pp", 0) in self.owners

    def counts(self, at: At, axes: frozenset[str] | None = None) -> bool:
        """Whether, of the ranks along `axes` (all) with equal copies, the one at these coordinates speaks for them.

        It is the first: the norm counts its numbers, and a checkpoint has them from it.
        """
        first = {"pp": self.owners[0]} if self.owners else {}
        copied = (axes or at.keys()) - (self.cut_along - {"pp"})
        of_copies = all(cut.is_first(at[axis]) for axis, cut in self.cuts.items())
        return self.is_held(at) and of_copies and all(at[axis] == first.get(axis, 0) for axis in copied)

    def holders(self, axis: str, at: At, size: int) -> tuple[int, ...]:
        """The coordinates on an axis of those that have the same part of it as the rank at `at`."""
        if axis == "pp" and self.owners is not None:
            return self.owners
        cut = self.cuts.get(axis)
        return tuple(range(size) if cut is None else cut.holders(at[axis], size))

    def describe(self, sizes: Mapping[str, int], stretch: Stretch | None = None) -> str:
        """One phrase for each axis that has more than one rank; of a flat row, which `stretch` of it this is."""
        return "; ".join(f"{axis}: {self._along(axis, stretch)}" for axis, size in sizes.items() if size > 1)

    def _along(self, axis: str, stretch: Stretch | None) -> str:
        if self.flat is not None and stretch is not None and axis == self.flat.axis:
            words = f"{self.flat.row}[{stretch.start}:] of {stretch.total}"
            words += f" in {self.flat.parts} parts" * (self.flat.parts is not None)
        elif self.flat is not None and axis in self.flat.inner:
            words = f"with {self.flat.axis}"
        elif axis == "pp" and self.owners is not None:
            words = f"rank{'s' * (len(self.owners) > 1)} {', '.join(map(str, self.owners))}"
        else:
            words = str(self.shard.get(axis, Replicate()))
        return f"{words}, gradient {Partial()}" if axis in self.partial else words


def boxes_of(shape: Sequence[int], first: int, last: int) -> list[Box]:
    """The numbers `first` to `last` of a tensor, counted row by row, as boxes in the same order.

    They are the end of a row, whole rows, and the beginning of one; the two of a tensor with more dims in turn.
    Source: Wan et al. 2024, ByteCheckpoint, section 3.2.
    """
    if first >= last:
        return []
    if not shape:
        return [((), ())]
    inner = prod(shape[1:])
    (row, start), (end_row, end) = divmod(first, inner), divmod(last, inner)
    if row == end_row:
        return _in_row(row, boxes_of(shape[1:], start, end))
    found = _in_row(row, boxes_of(shape[1:], start, inner)) if start else []
    row += bool(start)
    if row < end_row:
        found.append(((row, *[0] * len(shape[1:])), (end_row - row, *shape[1:])))
    return found + _in_row(end_row, boxes_of(shape[1:], 0, end))


def _in_row(row: int, boxes: Sequence[Box]) -> list[Box]:
    return [((row, *offsets), (1, *sizes)) for offsets, sizes in boxes]
