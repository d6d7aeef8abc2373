"""How one tensor is cut along the axes of a mesh, in PyTorch's words; no torch is needed to say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from course_lib.split import split_sizes

At = Mapping[str, int]  # a rank's coordinate on each axis of the mesh
Box = tuple[tuple[int, ...], tuple[int, ...]]  # in a tensor: where it begins, and its size, along each dim


@dataclass(frozen=True)
class Shard:
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
        parts = self.parts or size // self.copies
        part = rank // self.copies % parts
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


@dataclass(frozen=True, kw_only=True)
class Flat:
    """A tensor as a stretch of one long row of numbers, of which every rank of an axis has a piece.

    With `parts` there are fewer pieces than ranks: each run of so many neighbours shares the row among them.
    """

    axis: str
    row: str  # its name: tensors of one row are gathered together
    start: int
    total: int  # numbers in the row
    parts: int | None = None

    def piece(self, length: int, rank: int, size: int) -> slice:
        """Which of the tensor's `length` numbers a rank has; they may be none."""
        parts = self.parts or size
        ends = [0, *accumulate(split_sizes(self.total, parts))]
        first, last = (end - self.start for end in ends[rank % parts : rank % parts + 2])
        return slice(min(max(first, 0), length), min(max(last, 0), length))


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
    def cut_along(self) -> frozenset[str]:
        """The axes whose ranks hold different parts of it, or not all of them a copy."""
        owned = ["pp"] if self.owners is not None else []
        return frozenset([*self.shard, *([self.flat.axis] if self.flat else []), *owned])

    def is_held(self, at: At) -> bool:
        """Whether the rank at these coordinates has any of it."""
        return self.owners is None or at.get("pp", 0) in self.owners

    def counts(self, at: At, axes: frozenset[str] | None = None) -> bool:
        """Whether, of the ranks along `axes` (all) with equal copies, the one at these coordinates speaks for them.

        It is the first: the norm counts its numbers, and a checkpoint has them from it.
        """
        first = {"pp": self.owners[0]} if self.owners else {}
        copied = (axes or at.keys()) - (self.cut_along - {"pp"})
        of_copies = all(
            at[axis] % shard.copies == 0 and (shard.parts is None or at[axis] < shard.parts)
            for axis, shard in self.shard.items()
        )
        of_copies &= self.flat is None or self.flat.parts is None or at[self.flat.axis] < self.flat.parts
        return self.is_held(at) and of_copies and all(at[axis] == first.get(axis, 0) for axis in copied)

    def holders(self, axis: str, at: At, size: int) -> tuple[int, ...]:
        """The coordinates on an axis of those that have the same part of it as the rank at `at`."""
        if axis == "pp" and self.owners is not None:
            return self.owners
        copies = self.shard[axis].copies if axis in self.shard else size
        first = at[axis] // copies * copies
        return tuple(range(first, first + copies))

    def describe(self, sizes: Mapping[str, int]) -> str:
        """One phrase for each axis that has more than one rank."""
        return "; ".join(f"{axis}: {self._along(axis)}" for axis, size in sizes.items() if size > 1)

    def _along(self, axis: str) -> str:
        if self.flat is not None and axis == self.flat.axis:
            words = f"{self.flat.row}[{self.flat.start}:] of {self.flat.total}"
            words += f" in {self.flat.parts} parts" * (self.flat.parts is not None)
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
