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


class Layout:
    """The places of a model's parameters and buffers by the model's own names; what is tied has its first name.

    `sizes` are the numbers of ranks along the mesh's axes. A technique writes what it will cut, then cuts.
    """

    def __init__(self, model: nn.Module, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.first_name = first_names(model)
        self.places = {
            name: Place(shape=tuple(parameter.shape), trained=parameter.requires_grad)
            for name, parameter in model.named_parameters()
        }
        self.parameters = tuple(self.places)
        self.places |= {name: Place(shape=tuple(b.shape), trained=False) for name, b in model.named_buffers()}
        self.averaged: set[str] = set()  # axes over which a technique averages gradients
        self._rows: dict[tuple[str, str], list[str]] = {}  # by axis and name what lies in a flat row, once it is asked

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
        return frozenset().union(*(place.cut_along for place in self.places.values()))

    def part(self, name: str, whole: Tensor, at: At) -> Tensor:
        """What the rank at `at` has of a whole tensor: a view where it can be one.

        An optimizer's step counter, a number beside a tensor that has dims, is everybody's.
        """
        flat = self.places[name].flat
        if self._is_counter(name, whole):
            return whole
        view = self._sharded(name, whole, at)
        if flat is None:
            return view
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
        place = self.places[name]
        spans = [(0, length) for length in place.shape]
        for axis, shard in place.shard.items():
            first, last = spans[shard.dim]
            start, end = shard.span(last - first, at[axis], self.sizes[axis])
            spans[shard.dim] = first + start, first + end
        piece = self._piece(name, at)
        found = boxes_of([last - first for first, last in spans], piece.start, piece.stop)
        origin = [first for first, _ in spans]
        return [(tuple(map(sum, zip(origin, offsets, strict=True))), sizes) for offsets, sizes in found]

    def in_boxes(self, name: str, numbers: Tensor, at: At) -> list[tuple[Box, Tensor]]:
        """What the rank at `at` has of a tensor, box by box, in the same memory."""
        boxes = self.boxes(name, at)
        if len(boxes) == 1:
            return [(boxes[0], numbers.view(boxes[0][1]))]
        parts = numbers.view(-1).split([prod(sizes) for _, sizes in boxes]) if boxes else ()
        return [(box, part.view(box[1])) for box, part in zip(boxes, parts, strict=True)]

    def joined(self, name: str, part_at: Callable[[At], Tensor | None], at: At) -> Tensor | None:
        """The whole of which `part_at` gives each rank's part; the rank at `at` keeps its coordinate where it can.

        None if a part that is not empty is missing.
        """
        place = self.places[name]
        if not place.is_held(at):
            assert place.owners is not None
            at = {**at, "pp": place.owners[0]}
        cut = [axis for axis in self.sizes if axis in place.cuts]
        ranks = [
            {**at, **dict(zip(cut, numbers, strict=True))}
            for numbers in product(*(place.cuts[axis].one_of_each(at[axis], self.sizes[axis]) for axis in cut))
        ]
        parts = [(rank, part_at(rank)) for rank in ranks]
        some = next((part for _, part in parts if part is not None), None)
        if some is None or not cut or self._is_counter(name, some):
            return some
        if any(part is None and self.size_at(name, rank) for rank, part in parts):
            return None
        whole = some.new_empty(place.shape)
        for rank, part in parts:
            self._fill(name, whole, part, rank)
        return whole

    def regions(self) -> dict[str, list[list[tuple[float, float, float, float]]]]:
        """For a picture: which rows and columns of each tensor every rank has, from 0 to 1, as rectangles.

        A stretch of a flat row is up to three of them: the end of a row, whole rows, and the beginning of one.
        """
        ranks = list(coordinates(self.sizes))
        return {name: [self._region(name, at) for at in ranks] for name in self.places}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the whole tensors."""
        return {name: place.shape for name, place in self.places.items()}

    def _region(self, name: str, at: At) -> list[tuple[float, float, float, float]]:
        if not self.size_at(name, at):
            return []
        rows, columns, *_ = *self.places[name].shape, 1, 1
        found = []
        for offsets, sizes in self.boxes(name, at):
            (row, column, *_), (tall, wide, *_) = (*offsets, 0, 0), (*sizes, 1, 1)
            found.append((row / rows, (row + tall) / rows, column / columns, (column + wide) / columns))
        return found

    def _left(self, name: str, at: At) -> int:
        """How many of a tensor's numbers its shards leave the rank at `at`."""
        place = self.places[name]
        shape = list(place.shape)
        for axis, shard in place.shard.items():
            first, last = shard.span(shape[shard.dim], at[axis], self.sizes[axis])
            shape[shard.dim] = last - first
        return prod(shape)

    def _is_even(self, name: str) -> bool:
        axes = self.places[name].shard
        every = product(*(range(self.sizes[axis]) for axis in axes))
        return len({self._left(name, dict(zip(axes, at, strict=True))) for at in every}) == 1

    def _piece(self, name: str, at: At) -> slice:
        """Which of the numbers that its shards leave it a rank has of a tensor."""
        flat = self.places[name].flat
        if flat is None:
            return slice(0, self._left(name, at))
        return flat.piece(self._stretch(name, flat, at), at[flat.axis], self.sizes[flat.axis])

    def _stretch(self, name: str, flat: Flat, at: At) -> Stretch:
        """Where in its flat row a tensor lies: the row that ranks share whose other coordinates are those of `at`."""
        if not self._rows:
            for other, place in self.places.items():
                if place.flat is not None:
                    self._rows.setdefault((place.flat.axis, place.flat.row), []).append(other)
        held = [other for other in self._rows[flat.axis, flat.row] if self.places[other].is_held(at)]
        sizes = [self._left(other, at) for other in held]
        number = held.index(name)
        return Stretch(sum(sizes[:number]), sizes[number], sum(sizes))

    def describe(self, name: str) -> str:
        """Where a tensor lies, in words; of a row that differs from rank to rank, as the first rank that has it."""
        place = self.places[name]
        first = {axis: place.owners[0] if axis == "pp" and place.owners else 0 for axis in self.sizes}
        stretch = self._stretch(name, place.flat, first) if place.flat is not None else None
        return place.describe(self.sizes, stretch) or "on the one rank"

    def __str__(self) -> str:
        wide = max(map(len, self.places), default=0)
        return "\n".join(
            f"{name:<{wide}}  {'x'.join(map(str, place.shape)) or 'number':>12}  {self.describe(name)}"
            for name, place in self.places.items()
        )

    def _is_counter(self, name: str, x: Tensor) -> bool:
        return not x.dim() and bool(self.places[name].shape)

    def _sharded(self, name: str, whole: Tensor, at: At) -> Tensor:
        for axis, shard in self.places[name].shard.items():
            first, last = shard.span(whole.shape[shard.dim], at[axis], self.sizes[axis])
            whole = whole.narrow(shard.dim, first, last - first)
        return whole

    def _fill(self, name: str, whole: Tensor, part: Tensor | None, at: At) -> None:
        """Write a rank's part to where it belongs."""
        flat, view = self.places[name].flat, self._sharded(name, whole, at)
        if part is None or not part.numel():
            return
        if flat is None:
            view.copy_(part)
        else:
            row = view.reshape(-1)  # a copy where the view is not contiguous
            row[self._piece(name, at)] = part.reshape(-1)
            view.copy_(row.view(view.shape))


def first_names(model: nn.Module) -> dict[str, str]:
    """For every name of a parameter or buffer the first name of the same tensor: what is tied has several."""
    first: dict[int, str] = {}
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def coordinates(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Every rank's coordinates, in the order of ranks."""
    for numbers in product(*map(range, sizes.values())):
        yield dict(zip(sizes, numbers, strict=True))


def parameters_at(layout: Layout, at: At) -> int:
    """How many parameters the rank at `at` holds."""
    return sum(layout.size_at(name, at) for name in layout.parameters)
