"""The techniques of sharded data parallelism: the ranks along "dp" share optimizer states, gradients and weights.

After `context` and `experts` the ranks along "cp" and "ep" share them, too: these have the same weights as well.
Experts, of which the ranks along "ep" have different ones, lie in rows of their own, shared along "dp" and "cp" alone.

trainer = Trainer(model, config, mesh=make_mesh(dp=4), apply=(fully_shard(by_block),))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Literal, get_args

import torch
from torch import nn
from torch.distributed import ProcessGroup

from course_lib.errors import four_parts
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.sharding.flat_row import Apart, Sharing
from course_lib.parallel.sharding.offload import CPUOffloadPolicy, DiskOffloadPolicy, StatesOnDisk
from course_lib.parallel.sharding.sharded import ShardedModel
from course_lib.parallel.sharding.stage_rows import StageRows
from course_lib.parallel.sharding.units import label_of, rows_of, weights_of_units
from course_lib.parallel.sharding.wrapping import Names, Policy, by_block
from course_lib.parallel.table import agreement
from course_lib.parallel.table.layout import Layout, coordinates
from course_lib.parallel.table.mesh import groups_within
from course_lib.parallel.table.placement import Flat
from course_lib.training.pipeline_engine import PipelineEngine
from course_lib.training.setup import Setup, Technique

AXIS = "dp"
Strategy = Literal["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD"]
RESHARDED = ("FULL_SHARD", "HYBRID_SHARD")  # a unit is freed between forward and backward


def zero(stage: int, policy: Policy = by_block, *, algorithm: str = "ring") -> Technique:
    """ZeRO-1: the ranks along "dp" share the optimizer's states; ZeRO-2: gradients as well. Weights stay whole.

    `policy` says which gradients are reduced together. ZeRO-1 keeps whole gradients until the last backward of a step;
    ZeRO-2 reduces in every micro-batch, as soon as a unit's are complete. Under a pipeline there is ZeRO-1 alone, which
    reduces what a stage has when its last backward is through.

    Cost: a reduce-scatter of the gradients and, after the optimizer's step, an all-gather of the weights.
    Source: Rajbhandari et al. 2020, ZeRO, section 5.
    Raises: ValueError for another stage; ZeRO-3 is `fully_shard`; and for ZeRO-2 after `stages`.
    """
    if stage not in (1, 2):
        rule, way_out = "ZeRO-1 and ZeRO-2 keep whole weights", "choose 1 or 2, or for 3 fully_shard"
        raise ValueError(four_parts("zero", f"stage={stage!r}", rule, way_out))

    def apply(setup: Setup) -> None:
        group = begin(setup, "zero", {"stage": stage, "algorithm": algorithm}, under_stages=stage == 1)
        sharing = Sharing(group, group, resident=True, algorithm=algorithm)
        if isinstance(setup.engine, PipelineEngine):
            _cut_stages(setup, setup.engine, sharing, policy)
        else:
            _cut(setup, sharing, policy, late=stage == 1)

    return apply


def fully_shard(
    policy: Policy = by_block,
    *,
    strategy: Strategy = "FULL_SHARD",
    shards: int | None = None,
    secondary: int | None = None,
    param_dtype: torch.dtype | None = None,
    gather_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    overlap: bool = True,
    algorithm: str = "ring",
    offload_policy: CPUOffloadPolicy | None = None,
) -> Technique:
    """ZeRO-3, or FSDP: the ranks along "dp" share the weights as well, and a unit is whole only while it computes.

    Strategies have PyTorch's names. FULL_SHARD frees a unit after its forward and gathers it again in backward;
    SHARD_GRAD_OP leaves it whole in between; NO_SHARD is data parallelism; with HYBRID_SHARD runs of `shards`
    neighbours share, and the runs are copies. With FULL_SHARD runs of `secondary` neighbours may keep pieces of a unit
    from forward to backward, which then gathers inside a run. `param_dtype` is what is computed and gathered in, unless
    `gather_dtype` is torch.int8 (`parallel.sharding.quantised`); `reduce_dtype` is what gradients are added up in;
    pieces, which the optimizer changes, keep the model's own. `offload_policy` says where pieces lie:
    `parallel.sharding.offload`.

    Cost: per micro-batch two all-gathers of a unit (SHARD_GRAD_OP: one) and a reduce-scatter; HYBRID_SHARD also an
    all-reduce of the pieces over the runs.
    Source: Zhao et al. 2023, PyTorch FSDP, sections 3 and 4; Wang et al. 2023, ZeRO++, sections 3.1 and 3.2.
    Raises: ValueError for another strategy, and for a `gather_dtype`, `shards` or `secondary` that it does not take or
        that do not divide the axis; OSError, the same on all ranks, if there is no room on the disk.
    """
    check_strategy("fully_shard", strategy, shards, secondary)

    def apply(setup: Setup) -> None:
        options: dict[str, object] = {"strategy": strategy, "shards": shards, "secondary": secondary}
        options |= {"dtypes": (param_dtype, gather_dtype, reduce_dtype), "overlap": overlap, "algorithm": algorithm}
        options |= {"offload_policy": type(offload_policy).__name__}
        group = begin(setup, "fully_shard", options)
        quantised = _is_quantised(gather_dtype, strategy, setup)
        inside, copies = _who_shares(setup, group, parts_of(strategy, shards, group.size()))
        sharing = Sharing(
            inside,
            group,
            dtype=param_dtype,
            reduce_dtype=reduce_dtype,
            algorithm=algorithm,
            copies=copies,
            secondary=_who_shares(setup, group, secondary)[0] if secondary is not None else None,
            quantised=quantised,
            offload=offload_policy is not None,
        )
        _cut(setup, sharing, policy, reshard_after_forward=strategy in RESHARDED, overlap=overlap)
        if isinstance(offload_policy, DiskOffloadPolicy):
            setup.shared = partial(StatesOnDisk, folder=offload_policy.folder, group=group)

    return apply


def check_strategy(operation: str, strategy: Strategy, shards: int | None, secondary: int | None = None) -> None:
    """Refuse an unknown strategy, and a number of shards or secondary ones where it has no meaning."""
    if strategy not in get_args(Strategy):
        values, way_out = f"strategy={strategy!r}", f"choose from {', '.join(get_args(Strategy))}"
        raise ValueError(four_parts(operation, values, "not a known strategy", way_out))
    if (shards is not None) != (strategy == "HYBRID_SHARD"):
        values, rule = f"strategy={strategy!r}, shards={shards}", "HYBRID_SHARD, and it alone, takes a number of shards"
        raise ValueError(four_parts(operation, values, rule, "give both, or neither"))
    if secondary is not None and strategy != "FULL_SHARD":
        values, rule = f"strategy={strategy!r}, secondary={secondary}", "FULL_SHARD alone gathers again in a run"
        raise ValueError(four_parts(operation, values, rule, "leave secondary out, or choose FULL_SHARD"))


def _is_quantised(gather_dtype: torch.dtype | None, strategy: Strategy, setup: Setup) -> bool:
    """Whether units are gathered in one-byte numbers.

    Raises: ValueError where they are not gathered, or where ranks along "tp" would round what they have alike apart.
    """
    if gather_dtype is None:
        return False
    values = f"gather_dtype={gather_dtype}"
    if gather_dtype != torch.int8:
        rule, way_out = "units are gathered in param_dtype, or in one-byte numbers", "give torch.int8, or leave it out"
    elif strategy == "NO_SHARD":
        values += ", strategy='NO_SHARD'"
        rule, way_out = "weights that stay whole are not gathered", "leave gather_dtype out, or choose FULL_SHARD"
    elif "tensor" in setup.applied:
        values += " after tensor"
        rule, way_out = "what ranks along tp have alike must be rounded alike", "leave one of them out"
    else:
        return True
    raise ValueError(four_parts("fully_shard", values, rule, way_out))


def parts_of(strategy: Strategy, shards: int | None, ranks: int) -> int:
    """Among how many of the ranks a row is shared."""
    if shards is not None:
        return shards
    return 1 if strategy == "NO_SHARD" else ranks


def begin(
    setup: Setup, name: str, options: dict[str, object], *, takes_parts: bool = False, under_stages: bool = False
) -> ProcessGroup:
    """The ranks that share; they have the same model from here on. DTensors only for one that `takes_parts`."""
    setup.begin(name, AXIS)
    if not takes_parts:
        setup.check_own(name, "torch_fully_shard()")
    if "stages" in setup.applied and not under_stages:
        values, rule = "applied after stages", "a pipeline's stages share the optimizer's states alone"
        raise ValueError(four_parts(name, values, rule, "apply zero(1) or replicate(), or leave the other one out"))
    group, replicas = setup.take_over(experts=True), setup.local.group(AXIS)
    agreement.same_model(name, setup.model, options, replicas)
    layout = setup.local.layout
    numbers = min(sum(layout.size_at(n, at) for n in layout.trained) for at in coordinates(layout.sizes))
    if numbers < group.size():
        axes = " x ".join(setup.data_axes(experts=True))
        values, way_out = f"{numbers} trained parameters, {group.size()} ranks", f"choose {axes} <= {numbers}"
        raise ValueError(four_parts(name, values, "every rank has something to train", way_out))
    # Along "dp" alone: on the other axes of the group ranks have the same by now, or experts of their own.
    broadcast.broadcast_state(setup.model, replicas, setup.local.name_of(**{**setup.local.at, AXIS: 0}))
    return group


def write_rows(layout: Layout, model: nn.Module, policy: Policy, *, parts: int, resident: bool = False) -> None:
    """Say of each parameter which stretch of which row it is; a row is cut in so many `parts`.

    Where weights stay `resident`, frozen ones are whole on every rank: there is nothing about them to share.
    """
    inner = [axis for axis in layout.sizes if axis in layout.averaged - {AXIS}]
    everyone = prod(layout.sizes[axis] for axis in (AXIS, *inner))
    fewer, uneven, apart = None if parts == everyone else parts, layout.uneven, _experts_of(layout)
    for group, named in weights_of_units(model, policy).items() if parts > 1 else ():
        found = rows_of(named, resident=resident, uneven=uneven, apart=apart)
        rows = [part for row in found for part in _by_owners(layout, row)]
        for number, row in enumerate(rows):
            # Experts are cut along "ep" already: of the ranks that have the same ones each gets a piece.
            cut = layout.places[row[0]].shard
            others = tuple(axis for axis in inner if axis not in cut)
            flat = Flat(axis=AXIS, row=label_of(group) + "'" * number, parts=fewer, inner=others)
            if prod(layout.sizes[axis] for axis in flat.axes) > 1:
                for name in row:
                    layout.write(name, flat=flat)


def _experts_of(layout: Layout) -> frozenset[str]:
    """The parameters of which some of the ranks that average gradients have other parts, be they frozen."""
    return frozenset(name for name in layout.parameters if layout.places[name].shard.keys() & layout.averaged)


def _by_owners(layout: Layout, names: Iterable[str]) -> list[list[str]]:
    """Of the names in a row those that the same ranks along "pp" have."""
    found: dict[tuple[int, ...] | None, list[str]] = {}
    for name in names:
        found.setdefault(layout.places[name].owners, []).append(name)
    return list(found.values())


def _who_shares(setup: Setup, group: ProcessGroup, parts: int) -> tuple[ProcessGroup, ProcessGroup | None]:
    """The ranks with the other pieces of a row, and those with a copy of this rank's, if there are any."""
    if parts == group.size():
        return group, None
    axes = setup.data_axes(experts=True)
    if len(axes) > 1:
        values, rule = f"{parts} of {group.size()} ranks along {', '.join(axes)}", "after context or experts all share"
        raise ValueError(four_parts("fully_shard", values, rule, "leave shards and secondary out, or apply replicate"))
    assert setup.local.mesh is not None  # `begin` has seen it
    inside, across = groups_within(setup.local.mesh, AXIS, parts)
    return inside, across if across.size() > 1 else None


def _cut(setup: Setup, sharing: Sharing, policy: Policy, **options: bool) -> None:
    """Write the table, then cut and hook; the trainer's parameters are this rank's pieces."""
    local = setup.local
    groups = policy(setup.skeleton)  # which has the sizes of the whole model

    def chosen(model: nn.Module) -> list[Names]:
        return groups

    write_rows(local.layout, setup.skeleton, chosen, parts=sharing.shards.size(), resident=sharing.resident)
    sharing = _with_experts(setup, replace(sharing, uneven=local.layout.uneven))
    sharded = ShardedModel(setup.model, sharing, chosen, **options)
    local.parameters |= sharded.pieces
    ends = setup.engine.ends
    ends.no_sync, ends.updated, ends.in_step = sharded.no_sync, sharded.updated, ends.in_step or not sharded.late


def _with_experts(setup: Setup, sharing: Sharing) -> Sharing:
    """The same, and who shares experts.

    An expert's gradient is the sum over the rows of all ranks along "ep" already, since the rows came to it. So fewer
    ranks add theirs up, but the sum is divided by as many as every other: without that it is ep times too large.
    """
    experts = _experts_of(setup.local.layout)
    if not experts:
        return sharing
    shards = setup.group_along(setup.data_axes(experts=False))
    return replace(sharing, apart=Apart(experts, shards), divisor=sharing.everyone.size())


def _cut_stages(setup: Setup, engine: PipelineEngine, sharing: Sharing, policy: Policy) -> None:
    """Write the table for all stages, then cut this rank's; the trainer's parameters are its pieces."""
    local, rows = setup.local, dict[str, dict[str, nn.Parameter]]()
    write_rows(local.layout, setup.skeleton, policy, parts=sharing.shards.size(), resident=True)
    experts = _experts_of(local.layout)
    for name, parameter in local.parameters.items():
        flat = local.layout.places[name].flat
        # An expert that no other rank has is in no row of the table, but its gradient is divided as every other one.
        if flat is not None or (name in experts and parameter.requires_grad):
            row = name if flat is None else flat.row
            rows.setdefault(row, {})[name] = parameter
    shared = StageRows(engine.pipeline, [*rows.values()], _with_experts(setup, sharing))
    local.parameters |= shared.pieces
    engine.reducer, engine.pipeline.stage_complete = shared, shared.mark_stage_ready
    engine.ends.updated = shared.updated
