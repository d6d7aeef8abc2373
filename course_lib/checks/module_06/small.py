"""The frame in which 06.9 and 06.10 run a small FSDP: it makes the units and tells the course's trainer of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from typing import Protocol

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.config import TrainConfig
from course_lib.parallel.mesh import groups_within, make_mesh
from course_lib.parallel.placement import Flat
from course_lib.parallel.replicate import broadcast_state
from course_lib.training.batches import Batch
from course_lib.training.setup import Setup
from course_lib.training.trainer import Trainer

_AXIS = "dp"


class Unit(Protocol):
    """A layer, whose weights are `piece` between its uses; `is_last` for the one that computes last."""

    piece: nn.Parameter
    is_last: bool


class MakesUnits(Protocol):
    """The class of units: it is called with a layer, the ranks with other pieces, and those with the same piece."""

    def __call__(self, layer: nn.Module, inside: ProcessGroup, across: ProcessGroup) -> Unit: ...


class InUnits(Trainer):
    """Trains a model of which each layer with weights is a unit of the given class, on all ranks.

    `shards` neighbours share a row, all ranks unless it is given. The optimizer trains pieces by parameter, which lie
    in the units' memory; after each backward they get their parts of the units' gradients.
    """

    def __init__(self, make_unit: MakesUnits, model: nn.Module, config: TrainConfig, shards: int | None = None) -> None:
        self.make_unit, self.shards, self.units = make_unit, shards or dist.get_world_size(), dict[str, Unit]()
        self.slices: dict[str, Mapping[str, slice]] = {}
        super().__init__(model, config, mesh=make_mesh(dp=dist.get_world_size()), apply=(self._cut,))

    def _cut(self, setup: Setup) -> None:
        """The technique: units, the table of where everything lies, and pieces for the optimizer."""
        setup.begin("fully_shard", _AXIS)
        broadcast_state(setup.model)
        local, pieces = setup.local, dict[str, nn.Parameter]()
        assert local.mesh is not None
        inside, across = groups_within(local.mesh, _AXIS, self.shards)
        for name, layer in setup.model.named_modules():
            named = {f"{name}.{own}": p for own, p in layer.named_parameters(recurse=False)}
            if named:
                shapes, flats = {own: p.shape for own, p in named.items()}, self._flats(name, named)
                self.units[name] = unit = self.make_unit(layer, inside, across)
                self.slices[name] = parts = self._parts(flats, shapes)
                for own, part in parts.items():
                    pieces[own] = nn.Parameter(self._shaped(unit.piece.detach()[part], shapes[own]))
                    if self.shards > 1:
                        local.layout.write(own, flat=flats[own])
        for name, unit in self.units.items():
            unit.is_last = name == list(self.units)[-1]
        local.layout.averaged.add(_AXIS)
        local.parameters = {name: pieces[name] for name in local.parameters}

    def _flats(self, unit: str, named: Mapping[str, nn.Parameter]) -> dict[str, Flat]:
        starts = [0, *accumulate(p.numel() for p in named.values())]
        parts = self.shards if self.shards < dist.get_world_size() else None
        return {
            name: Flat(axis=_AXIS, row=unit, start=start, total=starts[-1], parts=parts)
            for name, start in zip(named, starts, strict=False)
        }

    def _parts(self, flats: Mapping[str, Flat], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, slice]:
        """What of this rank's piece belongs to each parameter."""
        rank, size, end = dist.get_rank(), dist.get_world_size(), 0
        parts = {}
        for name, flat in flats.items():
            mine = flat.piece(prod(shapes[name]), rank, size)
            parts[name] = slice(end, end := end + mine.stop - mine.start)
        return parts

    def _shaped(self, piece: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Of the parameter's shape where one rank has the whole row."""
        return piece.view(shape) if self.shards == 1 else piece

    def compute_gradients(self, batch: Batch) -> float:
        """As the course's trainer; then each piece gets its gradient."""
        loss = super().compute_gradients(batch)
        shapes = self.shapes()
        for name, unit in self.units.items():
            gradient, unit.piece.grad = unit.piece.grad, None
            for own, part in self.slices[name].items():
                mine = None if gradient is None else self._shaped(gradient[part], shapes[own])
                self.local.parameters[own].grad = mine
        return loss
