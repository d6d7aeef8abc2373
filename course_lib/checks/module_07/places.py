"""07.3: which numbers of a unit a rank has, when tensor parallelism has cut first and FSDP cuts the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.calls import calls_exercise
from course_lib.checks.kit.spec import Level

Shapes = tuple[tuple[str, tuple[int, ...], int | None], ...]  # name, shape, and the dim that tp cuts
LAYER1: Shapes = (("weight", (4, 6), 0), ("bias", (4,), 0))
LAYER2: Shapes = (("weight", (2, 4), 1), ("bias", (2,), None))
_ODD: Shapes = (("up", (7, 3), 0), ("bias", (7,), 0), ("down", (3, 7), 1), ("norm", (3,), None))
_SMALL: Shapes = (("weight", (2, 3), 1), ("norm", (2,), None))
_Part = Callable[[Tensor, int | None, int, int], Tensor]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A unit on dp x tp ranks, each of which is asked about."""

    dp: int
    tp: int
    unit: Shapes
    world_size: int = 1

    def __str__(self) -> str:
        return f"{', '.join(f'{name} {shape}' for name, shape, _ in self.unit)} on dp {self.dp} x tp {self.tp}"

    def asked(self, seed: int) -> list[UnitAsked]:
        """The numbers count on from one weight to the next, from another beginning for another seed."""
        first, weights = 100 * seed, dict[str, Tensor]()
        for name, shape, _ in self.unit:
            weights[name] = torch.arange(first, first + prod(shape)).view(shape)
            first += prod(shape)
        cuts = {name: dim for name, _, dim in self.unit}
        return [UnitAsked(weights, cuts, self.dp, self.tp, i, j) for i in range(self.dp) for j in range(self.tp)]


class UnitAsked(NamedTuple):
    """The whole weights of a unit, the dims that tp cuts, and a rank's coordinates."""

    weights: Mapping[str, Tensor]
    cuts: Mapping[str, int | None]
    dp: int
    tp: int
    i: int
    j: int

    def __str__(self) -> str:
        return f"the rank at dp {self.i}, tp {self.j}"


def _own(weight: Tensor, dim: int | None, tp: int, j: int) -> Tensor:
    return weight if dim is None else weight.tensor_split(tp, dim)[j]


def _row(x: Tensor, dp: int) -> Sequence[Tensor]:
    return x.tensor_split(dp)


def _piece(
    weights: Mapping[str, Tensor],
    cuts: Mapping[str, int | None],
    dp: int,
    tp: int,
    i: int,
    j: int,
    *,
    part: _Part = _own,
    cut: Callable[[Tensor, int], Sequence[Tensor]] = _row,
) -> Tensor:
    """Right, unless a part is chosen otherwise."""
    row = torch.cat([part(weight, cuts[name], tp, j).flatten() for name, weight in weights.items()])
    parts = cut(row, dp)
    return parts[i] if i < len(parts) else row[:0]


def _each_by_itself(
    weights: Mapping[str, Tensor], cuts: Mapping[str, int | None], dp: int, tp: int, i: int, j: int
) -> Tensor:
    return torch.cat([_piece({name: weight}, cuts, dp, tp, i, j) for name, weight in weights.items()])


def _row_first(
    weights: Mapping[str, Tensor], cuts: Mapping[str, int | None], dp: int, tp: int, i: int, j: int
) -> Tensor:
    return _piece(weights, cuts, dp, tp, i, j, part=lambda weight, *_: weight).tensor_split(tp)[j]


def _rows_first(
    weights: Mapping[str, Tensor], cuts: Mapping[str, int | None], dp: int, tp: int, i: int, j: int
) -> Tensor:
    return _piece({name: weight.tensor_split(dp)[i] for name, weight in weights.items()}, cuts, 1, tp, 0, j)


def _flat_twice(
    weights: Mapping[str, Tensor], cuts: Mapping[str, int | None], dp: int, tp: int, i: int, j: int
) -> Tensor:
    return torch.cat([weight.flatten() for weight in weights.values()]).tensor_split(tp)[j].tensor_split(dp)[i]


def _chunked(weight: Tensor, dim: int | None, tp: int, j: int) -> Tensor:
    parts = [weight] * tp if dim is None else weight.chunk(tp, dim)
    return parts[j] if j < len(parts) else weight[:0]


_PLACES = calls_exercise(
    key="07.3",
    title="who holds which numbers",
    names=("the numbers of its piece",),
    records=lambda case, seed: case.asked(seed),
    wanted=lambda asked: (_piece(*asked),),
    slips={
        "FSDP has cut first, and tensor parallelism what was left. Then a rank's half of a matrix is on other ranks": (
            _row_first
        ),
        "i and j are swapped: tp cuts the weights and its coordinate is j, dp cuts the row and its coordinate is i": (
            lambda weights, cuts, dp, tp, i, j: _piece(weights, cuts, tp, dp, j, i)
        ),
        "each weight was cut among the dp ranks by itself. Here what a rank has of all of them is one row first": (
            _each_by_itself
        ),
        "FSDP has cut the rows of each weight, and tensor parallelism what was left. Here tensor parallelism comes "
        "first, and FSDP cuts one flat row": _rows_first,
        "tensor parallelism has cut the flat row. It cuts each weight, along the dim that cuts says": _flat_twice,
        "tp has cut every weight along dim 0. cuts says for each along which": (
            partial(_piece, part=lambda w, dim, tp, j: _own(w, None if dim is None else 0, tp, j))
        ),
        "the weights are cut along the other dim": (
            partial(
                _piece,
                part=lambda w, dim, tp, j: _own(w, dim if dim is None else min(w.dim() - 1, 1 - dim), tp, j),
            )
        ),
        "what tp leaves whole was cut as well. With None each rank along tp has all of it": (
            partial(_piece, part=lambda w, dim, tp, j: _own(w, dim or 0, tp, j))
        ),
        "what tp leaves whole is missing on some ranks. With None each rank along tp has all of it": (
            partial(_piece, part=lambda w, dim, tp, j: w[:0] if dim is None and j else _own(w, dim, tp, j))
        ),
        "tp has not cut at all. If your code asks `if cuts[name]`, dim 0 counts as None": (
            partial(_piece, part=lambda w, dim, tp, j: w)
        ),
        "that is all that tp leaves a rank; FSDP cuts it once more": partial(_piece, cut=lambda row, dp: [row] * dp),
        "torch.chunk has cut the row, which leaves the last rank less. tensor_split's parts differ by one at most": (
            partial(_piece, part=_own, cut=lambda row, dp: row.chunk(dp))
        ),
        "torch.chunk has cut a weight, which leaves the last rank less. tensor_split's parts differ by one at most": (
            partial(_piece, part=_chunked)
        ),
        "a part's columns were written one after the other. flatten() goes row by row": (
            partial(_piece, part=lambda w, dim, tp, j: _own(w, dim, tp, j).T if w.dim() > 1 else _own(w, dim, tp, j))
        ),
    },
    levels={
        "pieces": Level(
            points=2,
            cases=(Cut(dp=2, tp=2, unit=LAYER1), Cut(dp=2, tp=2, unit=LAYER2)),
            praise="first tp's part of each weight, then dp's stretch of the row that these parts make",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(Cut(dp=2, tp=3, unit=_ODD), Cut(dp=3, tp=2, unit=_ODD)),
            praise="also where rows of the mesh have other numbers of numbers, and nothing divides",
        ),
        "edges": Level(
            points=1,
            cases=(
                Cut(dp=8, tp=2, unit=_SMALL),
                Cut(dp=4, tp=1, unit=LAYER1),
                Cut(dp=1, tp=4, unit=LAYER2),
            ),
            praise="an empty piece is a piece too, and one axis alone is lesson 05 or 06",
        ),
    },
    hints=(
        "Two cuts, one after the other. Which one is made first, and does the second one see the whole weights or what "
        "the first has left?",
        "Look at the picture: its two upper rows of numbers are what tp 1 has of the weight and of the bias. How would "
        "torch.tensor_split cut these, and what if tp leaves a weight whole?",
        "FSDP does not cut tensor by tensor. It lays what is left of them into one row, in their order, row by row of "
        "each. The picture's bar stands where one ends and the next begins.",
        "That row is the same for all ranks along dp, and each has a share of it. Does the share depend on where a "
        "tensor ends?",
    ),
)
