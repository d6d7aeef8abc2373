"""The techniques that a trainer applies, each a function that says where parameters lie, then cuts and hooks.

trainer = Trainer(model, config, mesh=make_mesh(pp=2, dp=2), apply=(stages(schedule), replicate()))
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from torch import nn

from course_lib.errors import four_parts
from course_lib.less.compressor import Compressor
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.parallel.data.options import Plan
from course_lib.parallel.data.stage_reducer import StageReducer
from course_lib.parallel.pipelines import stages as cutting
from course_lib.parallel.pipelines.executor import Pipeline
from course_lib.parallel.table import agreement
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.tensors.layers import ColumnParallelLinear, RowParallelLinear
from course_lib.schedules import Durations, Schedule, durations_by_rank, problems
from course_lib.split import split_sizes
from course_lib.training.lossy_technique import Lossy, begin_lossy
from course_lib.training.pipeline_engine import PipelineEngine
from course_lib.training.setup import Setup, Technique


def replicate(*, lossy: Lossy | Compressor | None = None, **options: Any) -> Technique:
    """Every rank along "dp" has the same weights and trains on its share; gradients are averaged over them.

    `options` are those of `DistributedDataParallel`. Under a pipeline a stage's gradients are averaged when its last
    backward is through.

    With `lossy` what all take for the average is not the exact one, but they all take the same: `lossy_technique`. On a
    mesh with an axis "across" gradients are averaged exactly inside each cluster, and with a loss between clusters.
    The gradient that is clipped is the one that arrived.

    Cost: `course_lib.costs.comm.ddp`, with `lossy` `course_lib.costs.comm.less`.
    """

    def apply(setup: Setup) -> None:
        setup.begin("replicate", "dp")
        setup.check_own("replicate", "torch_replicate()")
        setup.local.give_memory()  # a bucket takes it over
        hook = None if lossy is None else begin_lossy(setup, lossy)
        group = setup.take_over(experts=False)  # experts, and the rest along "ep", are added up before
        if isinstance(setup.engine, PipelineEngine):
            pipeline = setup.engine.pipeline
            plan = Plan(group=group, **options)
            agreement.same_model("replicate", setup.model, plan.options, group)
            everyone = setup.local.everyone
            assert everyone is not None  # there is a mesh: `begin` has seen it
            setup.engine.reducer = StageReducer(pipeline, plan, everyone)
            if hook is not None:
                setup.engine.reducer.hook = hook
            pipeline.stage_complete = setup.engine.reducer.mark_stage_ready
        else:
            wrapped = DistributedDataParallel(setup.model, process_group=group, **options)
            if hook is not None:
                wrapped.register_comm_hook(hook)
            setup.model = setup.engine.model = wrapped
            setup.engine.ends.no_sync = wrapped.no_sync

    return apply


def stages(
    schedule: Schedule, *, sizes: Sequence[int] | None = None, durations: Durations | Sequence[Durations] | None = None
) -> Technique:
    """Each rank along "pp" has some of the layers; `schedule` says in which order it computes them.

    `sizes` says how many layers each stage gets, as `parallel.pipelines.stages.cut` takes them; without it they get
    equally many. `durations`, one for all ranks of a pipeline or for each, lets computations last that long, for the
    emulated clock. With one micro-batch it is plain model parallelism.

    Cost: a step sends what `course_lib.costs.comm.pipeline` says, and the loss, a broadcast of one number.
    Raises: ValueError, the same on all ranks, if schedule, sizes, model and mesh do not fit each other.
    """

    def apply(setup: Setup) -> None:
        setup.begin("stages", "pp")
        local = setup.local
        lists = zlib.crc32(repr(schedule).encode())
        same = {"schedule": f"{schedule.name} (lists {lists:x})", "sizes": sizes, "config": setup.config}
        agreement.same_model("stages", setup.model, same, local.group("pp"))
        _check_schedule(schedule, local.size("pp"), setup.config.accumulation)
        lengths = sizes or split_sizes(len(cutting.layers_of(setup.model)), schedule.n_stages)
        skeletons, whole = cutting.cut(setup.skeleton, lengths), cutting.cut(setup.model, lengths)
        if local.size("tp") > 1:
            _check_blocks(whole)
        write_owners(local.layout, skeletons, schedule)
        broadcast.broadcast_state(setup.model, local.group("pp"), local.name_of(**{**local.at, "pp": 0}))
        mine = {number: whole[number] for number in schedule.stages_of(local.rank("pp"))}
        local.keep({name for name, place in local.layout.places.items() if place.is_held(local.at)})
        local.give_memory()  # a pipeline's messages lie where its stages do
        times = (
            durations_by_rank(durations, schedule.n_ranks, operation="stages")[local.rank("pp")] if durations else None
        )
        pipeline = Pipeline(mine, schedule, local.group("pp"), durations=times)
        ends, setup.engine = setup.engine.ends, PipelineEngine(pipeline, skeletons, local.group("pp"))
        setup.engine.ends = ends
        setup.model = setup.engine.model

    return apply


def write_owners(layout: Layout, skeletons: Sequence[nn.Module], schedule: Schedule) -> None:
    """Say on which ranks of "pp" everything lies; what lies on several has a gradient in as many terms."""
    owners: dict[str, set[int]] = {}
    for number, stage in enumerate(skeletons):
        for name in [*dict(stage.named_parameters()), *dict(stage.named_buffers())]:
            owners.setdefault(layout.first_name.get(name, name), set()).add(schedule.rank_of(number))
    for name, ranks in owners.items():
        tied = frozenset({"pp"} if len(ranks) > 1 else ())
        layout.write(name, owners=tuple(sorted(ranks)), partial=layout.places[name].partial | tied)


def _check_blocks(parts: Sequence[nn.Module]) -> None:
    """Raise the four-part error for a stage that ends inside a block of tensor parallelism."""
    open_column = ""
    for number, stage in enumerate(parts[:-1]):
        for name, module in stage.named_modules():
            if isinstance(module, RowParallelLinear):
                open_column = ""
            elif isinstance(module, ColumnParallelLinear) and not module.gathered:
                open_column = name
        if open_column:
            values = f"stage {number} ends between {open_column}, cut by column, and its row"
            rule, way_out = "a stage passes on whole features", "choose sizes that leave the two on one stage"
            raise ValueError(four_parts("stages", values, rule, way_out))


def _check_schedule(schedule: Schedule, world_size: int, accumulation: int) -> None:
    """Raise the four-part error for a schedule that these ranks cannot run."""
    if schedule.n_ranks != world_size:
        values = f"a schedule for {schedule.n_ranks} ranks, {world_size} ranks along pp"
        way_out = f"make it with n_ranks={world_size}"
        raise ValueError(four_parts("stages", values, "every rank has its own list", way_out))
    if found := problems(schedule):
        rule, way_out = "the ranks must come to the end of their lists", "let `schedules.problems` look at the schedule"
        raise ValueError(four_parts("stages", agreement.listing(found), rule, way_out))
    if accumulation > 1:
        values, rule = f"accumulation={accumulation}", "the schedule says into how many micro-batches a batch is cut"
        raise ValueError(four_parts("stages", values, rule, "give n_microbatches to make_schedule"))
