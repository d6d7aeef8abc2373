"""What a technique of parallel training may change, and in which order techniques come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.config import TrainConfig
from course_lib.errors import four_parts
from course_lib.parallel.sequence.shared import SharedSequence
from course_lib.parallel.table.local import Local, own_part
from course_lib.parallel.table.mesh import ACROSS, joined
from course_lib.training.engine import Engine
from course_lib.training.kept import Apart

ORDER = (  # one of each
    ("tensor",),
    ("context",),
    ("packed",),
    ("experts",),
    ("stages",),
    ("autocast",),
    ("recompute",),
    ("chunked_loss",),
    ("balanced",),
    ("replicate", "zero", "fully_shard"),
    ("lossy", "local", "gossip"),
    ("scaled_loss",),
    ("without_frozen",),
)


@dataclass
class Setup:
    """A trainer that is being made: techniques write the layout, then cut the model and hook into it.

    `skeleton` is the model as it was, without its numbers: on every rank the table is written from it, for all stages.
    """

    model: nn.Module
    local: Local
    config: TrainConfig
    engine: Engine
    skeleton: nn.Module
    shared: Callable[[Optimizer], Optimizer] = lambda optimizer: optimizer  # what the ranks make of the trainer's
    applied: dict[str, str] = field(default_factory=dict)  # technique -> the axis that it uses, "" for none
    shares_positions: bool = False  # between blocks each rank along "tp" has some positions of a sequence
    unsaved: set[str] = field(default_factory=set)  # what a checkpoint leaves out: whoever goes on from it fills it
    shared_sequence: SharedSequence | None = None  # what `context` has the ranks along its axis share
    apart: Apart = field(default_factory=Apart)  # what ranks along one axis have different on purpose

    def begin(self, name: str, axis: str = "") -> None:
        """Note that a technique uses an axis, if it is one that ranks share.

        Raises: ValueError if it comes after one that must come later, or a second time, or if there is no such axis.
        """
        if axis and (self.local.mesh is None or axis not in self.local.layout.sizes):
            values, way_out = f"no axis {axis!r} in the mesh", f"give Trainer mesh=make_mesh({axis}=…)"
            raise ValueError(four_parts(name, values, "a technique runs along one axis of a mesh", way_out))
        place = {technique: number for number, techniques in enumerate(ORDER) for technique in techniques}
        too_late = [other for other in self.applied if place[other] >= place[name]]
        if too_late:
            order = ", ".join(" or ".join(techniques) for techniques in ORDER)
            values, way_out = f"applied after {too_late[0]}", f"apply each once, in the order {order}"
            raise ValueError(four_parts(name, values, "each technique takes what the one before left", way_out))
        self.applied[name] = axis

    def data_axes(self, *, experts: bool) -> list[str]:
        """The axes over which gradients are added up: "dp", and "cp", whose ranks have terms of every gradient.

        Of what is no expert also those along "ep", if `experts`: these read other rows, and have the same of it.
        """
        inner = ["ep"] * (experts and "experts" in self.applied) + ["cp"] * ("context" in self.applied)
        return ["dp", *inner]

    def take_over(self, *, experts: bool) -> ProcessGroup:
        """The ranks along `data_axes`, over which a data technique averages from here on."""
        local, axes = self.local, self.data_axes(experts=experts)
        local.layout.averaged |= set(axes)
        for name, place in local.layout.places.items():
            # Before, they were to be added up after backward, for themselves.
            if place.partial & set(axes):
                local.layout.write(name, partial=place.partial - set(axes))
        return self.group_along(axes)

    def group_along(self, axes: list[str]) -> ProcessGroup:
        """The ranks along some axes of the mesh."""
        assert self.local.mesh is not None  # `begin` has seen it
        return self.local.group(axes[0]) if len(axes) == 1 else joined(self.local.mesh, axes)

    def far_axis(self, name: str) -> str:
        """Where a technique may lose something: between clusters, if the mesh has any, else between all along "dp".

        Raises: ValueError where a technique averages gradients exactly along that axis already.
        """
        layout = self.local.layout
        axis = ACROSS if ACROSS in layout.sizes else "dp"
        if axis in layout.averaged:
            exact = next((other for other, used in self.applied.items() if used == axis), "a technique")
            values, rule = f"applied after {exact}", f"along {axis} gradients are averaged already"
            way_out = f"leave {exact} out, or give make_mesh({ACROSS}=…), the axis between clusters"
            raise ValueError(four_parts(name, values, rule, way_out))
        self.begin(name, axis)
        layout.averaged.add(axis)  # a mean over it comes about in the end, of gradients or of weights
        if axis == ACROSS:
            layout.row_axes.insert(0, axis)
        return axis

    def refuse_after(self, name: str, earlier: tuple[str, ...], way_out: str) -> None:
        """Refuse a technique that does not know what an earlier one left."""
        if found := [other for other in earlier if other in self.applied]:
            values, rule = f"applied after {' and '.join(found)}", "it averages along dp alone"
            raise ValueError(four_parts(name, values, rule, f"apply {way_out}"))

    def check_own(self, name: str, way_out: str) -> None:
        """Refuse parameters that PyTorch has distributed, for a technique that cannot take DTensors."""
        if any(own_part(p) is not p for p in self.local.parameters.values()):
            values, rule = "parameters that PyTorch distributed", "it takes tensors of this rank"
            raise ValueError(four_parts(name, values, rule, f"apply {way_out} after torch_tensor()"))

    def check_axes(self) -> None:
        """Refuse an axis of several ranks that no technique uses: its ranks would do the same work."""
        sizes = self.local.layout.sizes
        idle = [axis for axis, size in sizes.items() if size > 1 and axis not in self.applied.values()]
        if idle:
            rule, way_out = "every axis of several ranks has its technique", f"apply one, or leave {idle[0]} out"
            raise ValueError(four_parts("Trainer", f"{idle[0]}={sizes[idle[0]]} without a technique", rule, way_out))


Technique = Callable[[Setup], None]
