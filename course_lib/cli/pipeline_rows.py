"""Proof rows of pipeline parallelism: every schedule on a small transformer with a tied embedding, on real text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from course_lib.cli import training_rows
from course_lib.cli.proof import Row, Rows
from course_lib.comm.traces import Traffic
from course_lib.config import ModelConfig, ParallelConfig, TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_wrapping
from course_lib.costs.comm.pipeline import pipeline_step
from course_lib.costs.model.states import rank_parameters
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.schedules import SCHEDULES, Schedule, make_schedule
from course_lib.training.batches import Batches
from course_lib.training.techniques import replicate, stages
from course_lib.training.trainer import Trainer
from course_lib.verify import assert_parallel_equals

_MICROBATCHES_PER_RANK = 2  # of one sequence each
SEQUENCE = 32
STEPS = 2
DTYPE = torch.float64


def _pipeline_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """A row for each schedule."""
    for schedule in every_schedule(world_size):
        yield pipeline_row(f"pipeline, {schedule.name}", schedule, text, pipeline_traffic)


def every_schedule(n_ranks: int) -> Iterator[Schedule]:
    """Of so many ranks, each with as few stages as the schedule takes."""
    for name in SCHEDULES:
        stages_per_rank = 2 if name == "interleaved" else 1
        yield make_schedule(name, n_ranks, _MICROBATCHES_PER_RANK * n_ranks, stages_per_rank=stages_per_rank)


def pipeline_row(
    technique: str, schedule: Schedule, text: bytes, traffic: Callable[[Schedule, ModelConfig], Traffic], dp: int = 1
) -> Row:
    """Climb the verification ladder on `dp` pipelines; compare the SGD run's traffic and memory with their formulas."""
    model, pp = _model_for(schedule), schedule.n_ranks
    batches = Batches(text=text, batch_size=dp * schedule.n_microbatches, sequence=SEQUENCE)
    alone, parallel = partial(_on_one_device, model=model), partial(_on_stages, model=model, schedule=schedule, dp=dp)
    report = assert_parallel_equals(alone, parallel, batches, world_size=pp * dp, steps=STEPS, dtype=DTYPE)
    return Row(
        technique=f"{technique}, {str(DTYPE).removeprefix('torch.')}",
        world_size=report.world_size,
        deviation=report.max_deviation,
        tolerance=report.tolerance,
        traffic=Traffic.measured(report.ledger),
        predicted=traffic(schedule, model),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=tuple(_rank_state_bytes(model, pp, stage) for stage in range(pp) for _ in range(dp)),
    )


def _model_for(schedule: Schedule) -> ModelConfig:
    """A layer for every stage, so that the first and the last have embedding and head besides."""
    return replace(training_rows.MODEL, n_layers=schedule.n_stages, tied=True)


def _on_one_device(config: TrainConfig, model: ModelConfig) -> Trainer:
    """The transformer on one device, with weights that the seed decides."""
    return Trainer(Decoder(model), config)


def _on_stages(config: TrainConfig, model: ModelConfig, schedule: Schedule, dp: int = 1) -> Trainer:
    """The same in stages, on `dp` pipelines."""
    techniques = [stages(schedule, sizes=sizes_of(schedule, model)), *([replicate()] if dp > 1 else [])]
    return Trainer(Decoder(model), config, mesh=make_mesh(pp=schedule.n_ranks, dp=dp), apply=techniques)


def sizes_of(schedule: Schedule, model: ModelConfig) -> list[int]:
    """As many of the model's layers in each stage; what is outside them is a layer to the cut."""
    sizes = [model.n_layers // schedule.n_stages] * schedule.n_stages
    sizes[0] += 1
    sizes[-1] += 1
    return sizes


def pipeline_traffic(schedule: Schedule, model: ModelConfig) -> Traffic:
    """Wrapping; in each step what passes the cuts, the tied gradient, the loss and the gradient's norm."""
    world_size, itemsize = schedule.n_ranks, DTYPE.itemsize
    wrapping = ddp_wrapping(
        [([parameter.numel() for parameter in Decoder(model).parameters()], itemsize)], world_size=world_size
    )
    step = pipeline_step(
        [SEQUENCE * model.hidden_size * itemsize] * (schedule.n_stages - 1),
        n_ranks=world_size,
        n_microbatches=schedule.n_microbatches,
        tied_bytes=model.vocab_size * model.hidden_size * itemsize,
    )
    number = partial(comm_time, world_size=world_size, length=1, itemsize=8)
    loss, norm = number("broadcast", "tree", root=world_size - 1), number("all_reduce", "ring")
    return Traffic.predicted([wrapping, *[step, loss, norm] * STEPS])


def _rank_state_bytes(model: ModelConfig, world_size: int, rank: int) -> int:
    """Weights and gradients of a rank's stages under plain SGD, which keeps nothing else."""
    return 2 * DTYPE.itemsize * rank_parameters(model, ParallelConfig(pp=world_size), stage=rank).total


ROWS = Rows(lesson=4, prove=_pipeline_rows)
