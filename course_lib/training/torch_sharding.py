"""The techniques of sharded data parallelism by PyTorch's own API, to use and to compare with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib.errors import four_parts
from course_lib.parallel.sharding.units import group_around, owners
from course_lib.parallel.sharding.wrapping import Names, Policy, by_block
from course_lib.parallel.table import meta
from course_lib.parallel.table.layout import Layout, first_names
from course_lib.parallel.table.local import Local
from course_lib.parallel.table.mesh import groups_within
from course_lib.parallel.table.placement import Shard
from course_lib.training.setup import Setup, Technique
from course_lib.training.sharding import AXIS, RESHARDED, Strategy, begin, check_strategy, parts_of
from course_lib.training.torch_techniques import wrap


def torch_zero(**options: Any) -> Technique:
    """What `zero(1)` does, by PyTorch's ZeroRedundancyOptimizer beside its DistributedDataParallel.

    Each rank has the optimizer's states of some of the parameters, whole ones. `options` are DistributedDataParallel's.

    Cost: an all-reduce of the gradients, and after the optimizer's step a broadcast of every parameter.
    """

    def apply(setup: Setup) -> None:
        setup.refuse_after("torch_zero", ("context", "experts"), "zero(1)")
        group = begin(setup, "zero", {"by": "PyTorch"})
        wrap(setup, options)
        setup.shared = lambda optimizer: _share(optimizer, group)

    return apply


def _share(optimizer: Optimizer, group: ProcessGroup) -> Optimizer:
    """The same optimizer, of which each rank has the states of some parameters; its state is everybody's, as usual."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript, which its package still loads
        from torch.distributed.optim import ZeroRedundancyOptimizer

    class Shared(ZeroRedundancyOptimizer):
        def state_dict(self) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for rank in range(group.size()):  # one has it at a time
                self.consolidate_state_dict(to=rank)
                found = super().state_dict() if rank == group.rank() else found
            return found

    kind = type(optimizer)
    defaults = {name: value for name, value in optimizer.defaults.items() if name != "decoupled_weight_decay"}
    return Shared(optimizer.param_groups[0]["params"], kind, process_group=group, **defaults)


def torch_fully_shard(
    policy: Policy = by_block,
    *,
    strategy: Strategy = "FULL_SHARD",
    shards: int | None = None,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
) -> Technique:
    """What `fully_shard` does, by PyTorch's function of the same name: each parameter is a DTensor, cut by its rows.

    SHARD_GRAD_OP is its `reshard_after_forward=False`; for HYBRID_SHARD it gets a mesh of two axes, over which it
    replicates and shards, and for NO_SHARD the same with one rank to shard over.

    Cost: as `fully_shard`, with the rows of each parameter padded to equally many on every rank.
    Raises: ValueError as `fully_shard`, for parameters without rows, for a weight tied across two units, and after a
        `tensor` that leaves terms of gradients on the ranks.
    """
    check_strategy("torch_fully_shard", strategy, shards)

    def apply(setup: Setup) -> None:
        options: dict[str, object] = {
            "strategy": strategy,
            "shards": shards,
            "dtypes": (param_dtype, reduce_dtype),
            "by": "PyTorch",
        }
        setup.refuse_after("torch_fully_shard", ("context", "experts"), "fully_shard()")
        begin(setup, "fully_shard", options, takes_parts=True)
        groups = policy(setup.model)
        _check_model(setup.model, groups)
        _check_terms(setup.local.layout)
        parts = parts_of(strategy, shards, setup.local.size(AXIS))
        _write_table(setup.local, parts)
        _shard(setup.model, groups, _mesh(setup.local, parts), strategy in RESHARDED, param_dtype, reduce_dtype)
        meta.give_memory_to_dtensors(setup.model, setup.local.device)
        setup.local.renew(setup.model)

    return apply


def _check_model(model: nn.Module, groups: Sequence[Names]) -> None:
    """Refuse what PyTorch would leave out, or untie."""
    if numbers := [name for name, p in model.named_parameters() if not p.dim()]:
        rule, way_out = "PyTorch cuts rows, and a number has none", "give it shape (1,), or apply fully_shard()"
        raise ValueError(four_parts("torch_fully_shard", f"{numbers[0]} is one number", rule, way_out))
    names = first_names(model)
    unit_of = owners(groups, names)
    for name, first in names.items():
        if group_around(name, groups) != unit_of[first]:
            rule = "PyTorch cuts a parameter in the unit that has it, so the others would have their own"
            way_out = "let the policy leave them to the root, or apply fully_shard()"
            raise ValueError(four_parts("torch_fully_shard", f"{name}, which several units use", rule, way_out))


def _check_terms(layout: Layout) -> None:
    """Refuse gradients that are to be added up beside those which are averaged here: these will be DTensors."""
    if terms := [name for name in layout.trained if layout.places[name].partial]:
        values = f"ranks along {', '.join(layout.places[terms[0]].partial)} have terms of the gradient of {terms[0]}"
        way_out = "apply torch_tensor() before it, or fully_shard() after tensor()"
        raise ValueError(four_parts("torch_fully_shard", values, f"it adds up along {AXIS} alone", way_out))


def _write_table(local: Local, parts: int) -> None:
    """PyTorch cuts what earlier techniques have left of a tensor by rows, as `torch.chunk` does."""
    runs = None if parts == local.size(AXIS) else parts
    for name in local.parameters if parts > 1 else ():
        shard = {**local.layout.places[name].shard, AXIS: Shard(0, parts=runs, chunked=True)}
        local.layout.write(name, shard=shard)


def _mesh(local: Local, parts: int) -> DeviceMesh:
    """Of one axis, or of two: copies, and the ranks that share one."""
    assert local.mesh is not None  # `begin` has seen it
    if parts == local.size(AXIS):
        return local.mesh[AXIS]
    inside, across = groups_within(local.mesh, AXIS, parts)
    names = [*local.layout.sizes]
    here = names.index(AXIS)
    groups = local.mesh.get_all_groups()
    groups[here : here + 1], names[here : here + 1] = [across, inside], ["copy", "shard"]
    grid = local.mesh.mesh.unflatten(here, (-1, parts))  # of all axes: PyTorch joins no others with those of a DTensor
    whole = DeviceMesh.from_group(groups, local.mesh.device_type, mesh=grid, mesh_dim_names=tuple(names))
    return whole["copy", "shard"]


def _shard(
    model: nn.Module,
    groups: Sequence[Names],
    mesh: DeviceMesh,
    reshard: bool,
    param_dtype: torch.dtype | None,
    reduce_dtype: torch.dtype | None,
) -> None:
    """From the inside out, the root last: it stays whole from its forward to the end of backward."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # What blocks are given has its dtype already; angles of late positions need more digits than bf16 has.
    inner = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)
    for group in reversed(groups):
        modules = [model.get_submodule(name) for name in group]
        fully_shard(modules, mesh=mesh, reshard_after_forward=reshard, mp_policy=inner)
    outer = MixedPrecisionPolicy(
        param_dtype=param_dtype, reduce_dtype=reduce_dtype, output_dtype=param_dtype and torch.float32
    )
    fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=outer)
    model.register_forward_hook(_free_after_inference)


def _free_after_inference(model: nn.Module, _: object, output: object) -> None:
    """Without a backward PyTorch would leave units whole, and compute with them when the weights have changed."""
    from torch.distributed.fsdp import FSDPModule

    if not torch.is_grad_enabled():
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
