"""The ranks as a grid with named axes, and a process group for every row of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from course_lib.comm import call
from course_lib.errors import four_parts

ACROSS = "across"  # clusters: their ranks are far apart, and a mesh has this axis where it is asked for
AXES = ("pp", "dp", "ep", "cp", "tp")  # neighbours along the last are neighbouring ranks: it talks most
_groups: dict[tuple[int, ...], ProcessGroup] = {}  # made once: PyTorch never gives a group's threads back


def make_mesh(**degrees: int) -> DeviceMesh:
    """A mesh of all ranks with the axes of AXES; one that is not named has one rank. All ranks call it.

    `across` is an axis of clusters, outside all others.

    Cost: the first mesh of a shape makes its groups, 2 to 15 ms each; a second one takes them over.
    Raises: ValueError, before a group is made, unless the degrees multiply to the number of ranks.
    """
    everyone = call.resolve(None, "make_mesh")
    names = (ACROSS, *AXES) if ACROSS in degrees else AXES
    if unknown := [axis for axis in degrees if axis not in names]:
        values, way_out = f"{unknown[0]}={degrees[unknown[0]]}", f"choose from {', '.join((ACROSS, *AXES))}"
        raise ValueError(four_parts("make_mesh", values, "a mesh has no such axis", way_out))
    shape = tuple(degrees.get(axis, 1) for axis in names)
    if min(shape) < 1 or prod(shape) != everyone.size():
        values = " x ".join(f"{axis}={size}" for axis, size in degrees.items()) or "one rank"
        rule = f"the degrees' product is the number of ranks, {everyone.size()}"
        raise ValueError(four_parts("make_mesh", values, rule, f"change a degree, or start {prod(shape)} ranks"))
    grid = torch.arange(everyone.size(), device="cpu").reshape(shape)
    _groups[tuple(range(everyone.size()))] = everyone
    groups = [_row_of(grid, number) for number in range(len(names))]
    return DeviceMesh.from_group(groups, call.device_of(everyone).type, mesh=grid, mesh_dim_names=names)


def mesh_of(group: ProcessGroup, axis: str) -> DeviceMesh:
    """A mesh of one axis over the ranks of a group: some of all ranks train for themselves."""
    return DeviceMesh.from_group(group, call.device_of(group).type, mesh_dim_names=(axis,))


def groups_within(mesh: DeviceMesh, axis: str, parts: int) -> tuple[ProcessGroup, ProcessGroup]:
    """Cut an axis into runs of `parts` neighbours: this rank's run, and the ranks with its place in every run.

    All ranks of the mesh call it.
    Raises: ValueError unless `parts` divides the axis.
    """
    assert mesh.mesh_dim_names is not None
    dim = mesh.mesh_dim_names.index(axis)
    size = mesh.shape[dim]
    if parts < 1 or size % parts:
        values, rule = f"{parts} parts of {axis}={size}", "every run of neighbours has equally many ranks"
        fitting = [n for n in range(1, size + 1) if size % n == 0]
        raise ValueError(four_parts("groups_within", values, rule, f"choose from {fitting}"))
    if parts == size:
        _groups.setdefault(tuple(dist.get_process_group_ranks(mesh.get_group(axis))), mesh.get_group(axis))
    grid = mesh.mesh.movedim(dim, -1).unflatten(-1, (size // parts, parts))
    return _row_of(grid, grid.ndim - 1), _row_of(grid, grid.ndim - 2)


def joined(mesh: DeviceMesh, axes: Sequence[str]) -> ProcessGroup:
    """The group of this rank's row along several axes as if they were one, the last of them the innermost.

    All ranks of the mesh call it.
    """
    assert mesh.mesh_dim_names is not None
    dims = [mesh.mesh_dim_names.index(axis) for axis in axes]
    last = list(range(-len(dims), 0))
    grid = mesh.mesh.movedim(dims, last).flatten(-len(dims))
    return _row_of(grid, grid.ndim - 1)


def _row_of(grid: torch.Tensor, dim: int) -> ProcessGroup:
    """The group of this rank's row along a dim; all ranks make the groups of all rows, in one order."""
    mine = None
    for ranks in map(tuple, grid.movedim(dim, -1).reshape(-1, grid.shape[dim]).tolist()):
        if ranks not in _groups:
            _groups[ranks] = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            mine = _groups[ranks]
    assert mine is not None
    return mine
