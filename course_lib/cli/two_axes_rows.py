"""Proof rows of data parallelism over pipelines: half of the ranks in each, every schedule, by the same trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from course_lib.cli.pipeline_rows import DTYPE, STEPS, every_schedule, pipeline_row, pipeline_traffic, sizes_of
from course_lib.cli.proof import Row, Rows
from course_lib.comm.traces import Traffic
from course_lib.config import ModelConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_step, ddp_wrapping
from course_lib.costs.comm.traffic import CommTime
from course_lib.models.decoder import Decoder
from course_lib.parallel.data.buckets import trained
from course_lib.parallel.pipelines.stages import cut
from course_lib.schedules import Schedule

_PIPELINES = 2


def _two_axes_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """A row for each schedule, where the ranks make two pipelines of several stages."""
    pp = world_size // _PIPELINES
    if pp < 2 or world_size % _PIPELINES:
        return
    for schedule in every_schedule(pp):
        yield pipeline_row(
            f"dp={_PIPELINES} x pp={pp}, {schedule.name}", schedule, text, _two_axes_traffic, dp=_PIPELINES
        )


def _two_axes_traffic(schedule: Schedule, model: ModelConfig) -> Traffic:
    """Along pp what a pipeline sends; along dp, for each place in the pipelines, what data parallelism sends."""
    pp = pipeline_traffic(schedule, model)
    dp = [Traffic.predicted(costs) for costs in _stage_costs(schedule, model)]
    ranks = [(stage, share) for stage in range(schedule.n_ranks) for share in range(_PIPELINES)]

    def both(name: str) -> tuple[int, ...]:
        return tuple(getattr(pp, name)[stage] + getattr(dp[stage], name)[share] for stage, share in ranks)

    return Traffic(sent_bytes=both("sent_bytes"), received_bytes=both("received_bytes"), messages=both("messages"))


def _stage_costs(schedule: Schedule, model: ModelConfig) -> Iterator[Sequence[CommTime]]:
    """For each rank of a pipeline: wrapping, and in each step the buckets and two gathers of a row of numbers."""
    parts = cut(Decoder(model), sizes_of(schedule, model))
    gathers = [
        comm_time("all_gather", "ring", world_size=_PIPELINES, itemsize=8, length=count * _PIPELINES)
        for count in (2, 1)
    ]
    for rank in range(schedule.n_ranks):
        held = nn.ModuleList(parts[stage] for stage in schedule.stages_of(rank))
        lengths = [parameter.numel() for parameter in trained(held).values()]
        wrapping = ddp_wrapping([(lengths, DTYPE.itemsize)], world_size=_PIPELINES)
        by_stage = [[p.numel() for p in trained(parts[stage]).values()] for stage in schedule.stages_of(rank)]
        steps = [ddp_step(part, world_size=_PIPELINES, itemsize=DTYPE.itemsize) for part in by_stage]
        yield [wrapping, *[*steps, *gathers] * STEPS]


ROWS = Rows(lesson=4, prove=_two_axes_rows)
