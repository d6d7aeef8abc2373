"""Proof rows of data parallelism over pipelines: half of the ranks in each, every schedule, by the same trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from torch import nn

from course_lib.cli import pipeline_rows
from course_lib.cli.pipeline_rows import DTYPE, LAYERS_PER_RANK, MICROBATCHES_PER_RANK, SEQUENCE, STEPS
from course_lib.cli.proof import Row, Rows
from course_lib.comm.traces import Traffic
from course_lib.config import ModelConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_step, ddp_wrapping
from course_lib.costs.comm.traffic import CommTime
from course_lib.models.decoder import Decoder
from course_lib.parallel.buckets import trained
from course_lib.parallel.stages import cut
from course_lib.schedules import SCHEDULES, Schedule, make_schedule
from course_lib.training.batches import Batches
from course_lib.verify import assert_parallel_equals

PIPELINES = 2


def two_axes_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """A row for each schedule, where the ranks make two pipelines of several stages."""
    pp = world_size // PIPELINES
    if pp < 2 or world_size % PIPELINES:
        return
    for name in SCHEDULES:
        stages_per_rank = 2 if name == "interleaved" else 1
        yield two_axes_row(make_schedule(name, pp, MICROBATCHES_PER_RANK * pp, stages_per_rank=stages_per_rank), text)


def two_axes_row(schedule: Schedule, text: bytes) -> Row:
    """Climb the verification ladder; compare the SGD run's traffic and memory with their formulas."""
    model, pp = pipeline_rows.model_for(schedule), schedule.n_ranks
    batches = Batches(text=text, batch_size=PIPELINES * schedule.n_microbatches, sequence=SEQUENCE)
    alone = partial(pipeline_rows.on_one_device, model=model)
    parallel = partial(pipeline_rows.on_stages, model=model, schedule=schedule, dp=PIPELINES)
    report = assert_parallel_equals(alone, parallel, batches, world_size=pp * PIPELINES, steps=STEPS, dtype=DTYPE)
    memory = [pipeline_rows.rank_state_bytes(model, pp, stage) for stage in range(pp)]
    return Row(
        technique=f"dp={PIPELINES} x pp={pp}, {schedule.name}, {str(DTYPE).removeprefix('torch.')}",
        world_size=report.world_size,
        deviation=report.max_deviation,
        tolerance=report.tolerance,
        traffic=Traffic.measured(report.ledger),
        predicted=two_axes_traffic(schedule, model),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=tuple(memory[stage] for stage in range(pp) for _ in range(PIPELINES)),
    )


def two_axes_traffic(schedule: Schedule, model: ModelConfig) -> Traffic:
    """Along pp what a pipeline sends; along dp, for each place in the pipelines, what data parallelism sends."""
    pp = pipeline_rows.pipeline_traffic(schedule, model)
    dp = [Traffic.predicted(costs) for costs in stage_costs(schedule, model)]
    ranks = [(stage, share) for stage in range(schedule.n_ranks) for share in range(PIPELINES)]

    def both(name: str) -> tuple[int, ...]:
        return tuple(getattr(pp, name)[stage] + getattr(dp[stage], name)[share] for stage, share in ranks)

    return Traffic(sent_bytes=both("sent_bytes"), received_bytes=both("received_bytes"), messages=both("messages"))


def stage_costs(schedule: Schedule, model: ModelConfig) -> Iterator[Sequence[CommTime]]:
    """For each rank of a pipeline: wrapping, and in each step the buckets and two gathers of a row of numbers."""
    whole = Decoder(model)
    sizes = [LAYERS_PER_RANK * schedule.n_ranks // schedule.n_stages] * schedule.n_stages
    sizes[0], sizes[-1] = sizes[0] + 1, sizes[-1] + 1
    parts = cut(whole, sizes)
    gathers = [
        comm_time("all_gather", "ring", world_size=PIPELINES, itemsize=8, length=count * PIPELINES) for count in (2, 1)
    ]
    for rank in range(schedule.n_ranks):
        held = nn.ModuleList(parts[stage] for stage in schedule.stages_of(rank))
        lengths = [parameter.numel() for parameter in trained(held).values()]
        wrapping = ddp_wrapping([(lengths, DTYPE.itemsize)], world_size=PIPELINES)
        by_stage = [[p.numel() for p in trained(parts[stage]).values()] for stage in schedule.stages_of(rank)]
        steps = [ddp_step(part, world_size=PIPELINES, itemsize=DTYPE.itemsize) for part in by_stage]
        yield [wrapping, *[*steps, *gathers] * STEPS]


ROWS = Rows(lesson=4, prove=two_axes_rows)
