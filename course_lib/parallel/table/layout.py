"""The table that says where every parameter and buffer of a model lies on a mesh.

It knows names, shapes and the mesh's sizes, but no process and no group: every rank has the same complete table, other
stages' rows included, and it can be read, printed and compared with the cost formulas without any rank. Gathering,
scattering, the gradient's norm and checkpoints all follow from it (`course_lib.parallel.table.local`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, product
from math import prod
from typing import Any

from torch import Tensor, nn

from course_lib.parallel.table.placement import At, Box, Flat, Place, Stretch, boxes_of
from course_lib.sequence_cut import Order

_Rectangle = tuple[float, float, float, float]  # top, bottom, left, right; each from 0 to 1 of a tensor


class Layout:
    """The places of a model's parameters and buffers by the model's own names; what is tied has its first name.

    `sizes` are the numbers of ranks along the mesh's axes. A technique writes what it will cut, then cuts.
    """

    def __init__(self, model: nn.Module, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.first_name = first_names(model)
        self.row_axes = ["dp"]  # axes whose ranks take different rows of a batch, the outermost first
        self.sequence_order: Order = "contiguous"  # which positions the ranks along "cp" have
        self.averaged: set[str] = set()  # axes over which a technique averages gradients, or weights
        self.places: dict[str, Place] = {}
        for name, parameter in model.named_parameters():
            shape = tuple(parameter.shape)
            self.places[name] = Place(shape=shape, trained=parameter.requires_grad)
        self.parameters = tuple(self.places)
        for name, buffer in model.named_buffers():
            self.places[name] = Place(shape=tuple(buffer.shape), trained=False)
        # By axis and name what lies in each flat row. Made when it is asked for, since every `write` may change it.
        self._rows: dict[tuple[str, str], list[str]] = {}

    def write(self, name: str, **changes: Any) -> None:
        """Say more about where a tensor lies."""
        self.places[name] = replace(self.places[name], **changes)
        self._rows.clear()

    @property
    def trained(self) -> list[str]:
        """What one device's optimizer would have, in its order."""
        return [name for name in self.parameters if self.places[name].trained]

    @property
    def cutting_axes(self) -> frozenset[str]:
        """The axes along which anything is cut."""
        axes = frozenset[str]()
        for place in self.places.values():
            axes |= place.cut_along
        return axes

    def part(self, name: str, whole: Tensor, at: At) -> Tensor:
        """What the rank at `at` has of a whole tensor: a view where it can be one.

        An optimizer's step counter, a number beside a tensor that has dims, is everybody's.
        """
        if self._is_counter(name, whole):
            return whole
        view = self._sharded(name, whole, at)
        if self.places[name].flat is None:
            return view
        # Shards first, then the row: it holds what they leave.
        return view.reshape(-1)[self._piece(name, at)]

    def size_at(self, name: str, at: At) -> int:
        """How many numbers of a tensor the rank at `at` has."""
        place = self.places[name]
        if not place.is_held(at):
            return 0
        piece = self._piece(name, at)
        return piece.stop - piece.start

    @property
    def uneven(self) -> frozenset[str]:
        """The parameters of which shards leave some ranks more numbers than others."""
        return frozenset(name for name in self.parameters if not self._is_even(name))

    def boxes(self, name: str, at: At) -> list[Box]:
        """Where in a tensor lies what the rank at `at` has of it, in its order: a box, or several for a stretch."""
        origin, lengths = self._box(name, at)
        # Of what the shards leave, one box, a flat row may have a stretch. It begins and ends in the midst of a row.
        piece = self._piece(name, at)
        found: list[Box] = []
        for offsets, sizes in boxes_of(lengths, piece.start, piece.stop):
            corner = tuple(first + offset for first, offset in zip(origin, offsets, strict=True))
            found.append((corner, sizes))
        return found

    def in_boxes(self, name: str, numbers: Tensor, at: At) -> list[tuple[Box, Tensor]]:
        """What the rank at `at` has of a tensor, box by box, in the same memory."""
        boxes = self.boxes(name, at)
        if len(boxes) == 1:  # the numbers may be a view of a whole tensor, which `view(-1)` refuses
            _, sizes = boxes[0]
            return [(boxes[0], numbers.view(sizes))]
        row, found, start = numbers.view(-1), [], 0
        for box in boxes:
            _, sizes = box
            end = start + prod(sizes)
            found.append((box, row[start:end].view(sizes)))
            start = end
        return found

    def joined(self, name: str, part_at: Callable[[At], Tensor | None], at: At) -> Tensor | None:
        """The whole of which `part_at` gives each rank's part; the rank at `at` keeps its coordinate where it can.

        None if a part that is not empty is missing.
        """
        place = self.places[name]
        if not place.is_held(at):
            assert place.owners is not None
            at = {**at, "pp": place.owners[0]}

        # Along the axes that cut it, one rank for each different part; along the others `at` itself.
        axes = [axis for axis in self.sizes if axis in place.cuts]
        places_along = [place.cuts[axis].one_of_each(at[axis], self.sizes[axis]) for axis in axes]
        parts: list[tuple[dict[str, int], Tensor | None]] = []
        for numbers in product(*places_along):
            rank = {**at, **dict(zip(axes, numbers, strict=True))}
            parts.append((rank, part_at(rank)))

        some = next((part for _, part in parts if part is not None), None)
        if some is None or not axes or self._is_counter(name, some):
            return some
        for rank, part in parts:
            if part is None and self.size_at(name, rank):
                return None
        whole = some.new_empty(place.shape)
        for rank, part in parts:
            self._fill(name, whole, part, rank)
        return whole

    def regions(self) -> dict[str, list[list[_Rectangle]]]:
        """For a picture: which rows and columns of each tensor every rank has, from 0 to 1, as rectangles.

        A stretch of a flat row is up to three of them: the end of a row, whole rows, and the beginning of one.
        """
        ranks = list(coordinates(self.sizes))
        found = {}
        for name in self.places:
            found[name] = [self._region(name, at) for at in ranks]
        return found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the whole tensors."""
        return {name: place.shape for name, place in self.places.items()}

    def _region(self, name: str, at: At) -> list[_Rectangle]:
        if not self.size_at(name, at):
            return []
        # A vector is a matrix of one column, and a number one of one row, too.
        rows, columns, *_ = *self.places[name].shape, 1, 1
        found = []
        for offsets, sizes in self.boxes(name, at):
            row, column, *_ = *offsets, 0, 0
            tall, wide, *_ = *sizes, 1, 1
            top, bottom = row / rows, (row + tall) / rows
            left, right = column / columns, (column + wide) / columns
            found.append((top, bottom, left, right))
        return found

    def _box(self, name: str, at: At) -> tuple[list[int], list[int]]:
        """What its shards leave the rank at `at` of a tensor: where that begins along each dim, and how long it is."""
        place = self.places[name]
        origin = [0 for _ in place.shape]
        lengths = list(place.shape)
        for axis, shard in place.shard.items():
            # A dim may be cut along two axes: the second one cuts what the first has left.
            first, last = shard.span(lengths[shard.dim], at[axis], self.sizes[axis])
            origin[shard.dim] += first
            lengths[shard.dim] = last - first
        return origin, lengths

    def _left(self, name: str, at: At) -> int:
        """How many of a tensor's numbers its shards leave the rank at `at`."""
        _, lengths = self._box(name, at)
        return prod(lengths)

    def _is_even(self, name: str) -> bool:
        sizes = {axis: self.sizes[axis] for axis in self.places[name].shard}
        left = {self._left(name, at) for at in coordinates(sizes)}
        return len(left) == 1

    def _piece(self, name: str, at: At) -> slice:
        """Which of the numbers that its shards leave it a rank has of a tensor."""
        flat = self.places[name].flat
        if flat is None:
            return slice(0, self._left(name, at))
        rank, size = 0, 1
        for axis in flat.axes:
            rank = rank * self.sizes[axis] + at[axis]
            size *= self.sizes[axis]
        return flat.piece(self._stretch(name, flat, at), rank, size)

    def _stretch(self, name: str, flat: Flat, at: At) -> Stretch:
        """Where in its flat row a tensor lies: the row that ranks share whose other coordinates are those of `at`."""
        if not self._rows:
            for other, place in self.places.items():
                if place.flat is not None:
                    key = place.flat.axis, place.flat.row
                    self._rows.setdefault(key, []).append(other)
        in_row = self._rows[flat.axis, flat.row]
        held = [other for other in in_row if self.places[other].is_held(at)]
        sizes = [self._left(other, at) for other in held]
        number = held.index(name)
        start = sum(sizes[:number])
        return Stretch(start, sizes[number], sum(sizes))

    def describe(self, name: str) -> str:
        """Where a tensor lies, in words; of a row that differs from rank to rank, as the first rank that has it."""
        place = self.places[name]
        stretch = None
        if place.flat is not None:
            first = dict.fromkeys(self.sizes, 0)
            if place.owners:
                first["pp"] = place.owners[0]
            stretch = self._stretch(name, place.flat, first)
        return place.describe(self.sizes, stretch) or "on the one rank"

    def __str__(self) -> str:
        wide = max(map(len, self.places), default=0)
        lines = []
        for name, place in self.places.items():
            shape = "x".join(map(str, place.shape)) or "number"
            lines.append(f"{name:<{wide}}  {shape:>12}  {self.describe(name)}")
        return "\n".join(lines)

    def _is_counter(self, name: str, x: Tensor) -> bool:
        return not x.dim() and bool(self.places[name].shape)

    def _sharded(self, name: str, whole: Tensor, at: At) -> Tensor:
        origin, lengths = self._box(name, at)
        for dim in {shard.dim for shard in self.places[name].shard.values()}:
            whole = whole.narrow(dim, origin[dim], lengths[dim])
        return whole

    def _fill(self, name: str, whole: Tensor, part: Tensor | None, at: At) -> None:
        """Write a rank's part to where it belongs."""
        if part is None or not part.numel():
            return
        view = self._sharded(name, whole, at)
        if self.places[name].flat is None:
            view.copy_(part)
        else:
            row = view.reshape(-1)  # a copy where the view is not contiguous
            row[self._piece(name, at)] = part.reshape(-1)
            view.copy_(row.view(view.shape))


def first_names(model: nn.Module) -> dict[str, str]:
    """For every name of a parameter or buffer the first name of the same tensor: what is tied has several."""
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    of_tensor: dict[int, str] = {}
    found = {}
    for name, tensor in chain(parameters, buffers):
        found[name] = of_tensor.setdefault(id(tensor), name)
    return found


def coordinates(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Every rank's coordinates, in the order of ranks."""
    for numbers in product(*map(range, sizes.values())):
        yield dict(zip(sizes, numbers, strict=True))


def parameters_at(layout: Layout, at: At) -> int:
    """How many parameters the rank at `at` holds."""
    return sum(layout.size_at(name, at) for name in layout.parameters)
