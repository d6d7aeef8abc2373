"""The frame in which 06.9 and 06.10 run a small FSDP: it makes the units and tells the course's trainer of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Protocol

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.config import TrainConfig
from course_lib.parallel.data.replicate import broadcast_state
from course_lib.parallel.sharding.units import weights_of_units
from course_lib.parallel.sharding.wrapping import size_based
from course_lib.parallel.table.local import Local
from course_lib.parallel.table.mesh import groups_within, make_mesh
from course_lib.training.batches import Batch
from course_lib.training.setup import Setup
from course_lib.training.sharding import AXIS, write_rows
from course_lib.training.trainer import Trainer

_EACH_LAYER = size_based(1)  # that has weights


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
        """The technique: the table of where everything lies, units, and pieces for the optimizer."""
        setup.begin("fully_shard", AXIS)
        broadcast_state(setup.model)
        local, pieces = setup.local, dict[str, nn.Parameter]()
        assert local.mesh is not None
        inside, across = groups_within(local.mesh, AXIS, self.shards)
        write_rows(local.layout, setup.model, _EACH_LAYER, parts=self.shards)
        for group, named in weights_of_units(setup.model, _EACH_LAYER).items():
            for name in group:
                self.units[name] = unit = self.make_unit(setup.model.get_submodule(name), inside, across)
                self.slices[name] = parts = self._parts(local, named)
                for own, part in parts.items():
                    pieces[own] = nn.Parameter(self._shaped(unit.piece.detach()[part], named[own].shape))
        for name, unit in self.units.items():
            unit.is_last = name == list(self.units)[-1]
        local.layout.averaged.add(AXIS)
        local.parameters = {name: pieces[name] for name in local.parameters}

    def _parts(self, local: Local, names: Iterable[str]) -> dict[str, slice]:
        """What of this rank's piece belongs to each parameter."""
        ends = accumulate((local.layout.size_at(name, local.at) for name in names), initial=0)
        return {name: slice(*each) for name, each in zip(names, pairwise(ends), strict=True)}

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
