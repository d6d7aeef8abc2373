"""Whether every rank holds exactly what the layout says of each tensor: the first thing to look at in a cut model.

A weight that was cut along the wrong dim, or a rank that has its neighbour's part, need not give a wrong shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.parallel.table.layout import Layout
from course_lib.parallel.table.local import own_part
from course_lib.parallel.table.placement import At
from course_lib.ranks import run_ranks
from course_lib.verify.alike import SGD, born_with
from course_lib.verify.trainable import MakeTrainer


class _Mine(NamedTuple):
    """One rank: its coordinates and its parts, and the tensors that it puts together from everybody's."""

    at: At
    parts: dict[str, Tensor]
    whole: dict[str, Tensor]
    layout: Layout


@dataclass(frozen=True, kw_only=True)
class HeldParts:
    """What each rank holds of each parameter, and what of that is not as it should be."""

    layout: Layout
    places: tuple[At, ...]  # the ranks' coordinates
    shapes: dict[str, tuple[tuple[int, ...], ...]]  # of the parts, by name, then by rank
    wrong: tuple[str, ...]  # in words

    def __str__(self) -> str:
        """A line for each parameter: where it lies, and how many numbers every rank has of it."""
        lines = []
        for name, shapes in self.shapes.items():
            whole = " x ".join(map(str, self.layout.places[name].shape))
            parts = ", ".join(" x ".join(map(str, shape)) for shape in dict.fromkeys(shapes))
            lines.append(f"{name:<32} {whole:>12}  {self.layout.describe(name)}: {parts}")
        return "\n".join([*lines, *self.wrong] if self.wrong else [*lines, "every part is the layout's, bit by bit"])


def held_parts(reference: MakeTrainer, parallel: MakeTrainer, *, world_size: int) -> HeldParts:
    """Compare each rank's part of each parameter with what the layout says it is of one device's, bit by bit.

    Both make a trainer, as for the ladder. The whole that every rank puts together from the parts is compared as well.
    """
    with born_with(0, torch.float64):
        alone = reference(SGD)
    want = {name: p.detach() for name, p in alone.local.parameters.items()}
    ranks: list[_Mine] = run_ranks(_held, world_size, parallel)
    layout = ranks[0].layout
    wrong = [
        f"rank {rank}: {name}: {problem}"
        for rank, mine in enumerate(ranks)
        for name, part in mine.parts.items()
        if (problem := _problem(part, layout.part(name, want[name], mine.at), mine.whole[name], want[name]))
    ]
    return HeldParts(
        layout=layout,
        places=tuple(mine.at for mine in ranks),
        shapes={name: _shapes(name, [mine.parts for mine in ranks]) for name in layout.parameters},
        wrong=tuple(wrong),
    )


def _held(make: MakeTrainer) -> _Mine:
    with born_with(0, torch.float64):
        trainer = make(SGD)
    local = trainer.local
    parts = {name: own_part(p.detach()) for name, p in local.parameters.items()}
    return _Mine(local.at, parts, trainer.parameters(), local.layout)


def _problem(part: Tensor, want: Tensor, whole: Tensor, all_of_it: Tensor) -> str:
    if part.shape != want.shape:
        return f"holds {tuple(part.shape)}, the layout says {tuple(want.shape)}"
    if not torch.equal(part, want):
        return "other numbers than the layout says"
    return "" if torch.equal(whole, all_of_it) else "put together from all ranks it is another tensor"


def _shapes(name: str, parts: list[Mapping[str, Tensor]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(one[name].shape) for one in parts if name in one)
