"""Proof rows of training: a small transformer on real text, on ranks and on one device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist

from course_lib.cli.proof import Row, Rows
from course_lib.comm.traces import Traffic
from course_lib.config import ModelConfig, TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_step, ddp_wrapping
from course_lib.costs.model.states import sgd_state_bytes
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.batches import Batches
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer
from course_lib.units import format_seconds
from course_lib.verify import assert_parallel_equals

MODEL = ModelConfig(
    name="tour", hidden_size=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_size=176, vocab_size=256, tied=False
)
_SEQUENCES_PER_RANK = 4
SEQUENCE = 64
STEPS = 5
PRECISIONS = (torch.float32, torch.float64)  # in float64 only a bug can be left


def _data_parallel_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """Gradients averaged by our own ring."""
    for dtype in PRECISIONS:
        yield _data_parallel_row(world_size, text, dtype)


def _data_parallel_row(world_size: int, text: bytes, dtype: torch.dtype) -> Row:
    """Climb the verification ladder; compare the SGD run's traffic and memory with their formulas."""
    batches = Batches(text=text, batch_size=_SEQUENCES_PER_RANK * world_size, sequence=SEQUENCE)
    report = assert_parallel_equals(alone, _on_ranks, batches, world_size=world_size, steps=STEPS, dtype=dtype)
    name = f"data parallel by ring, {str(dtype).removeprefix('torch.')}"
    return Row(
        technique=name,
        world_size=report.world_size,
        deviation=report.max_deviation,
        tolerance=report.tolerance,
        traffic=Traffic.measured(report.ledger),
        predicted=_data_parallel_traffic(world_size, dtype.itemsize),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=(sgd_state_bytes(MODEL, itemsize=dtype.itemsize),) * world_size,
        note=(
            f"{name}: loss {report.losses[0]:.3f} -> {report.losses[-1]:.3f} nats in {STEPS} steps of SGD; "
            f"a step on one device takes {format_seconds(report.alone_step_s)}"
        ),
    )


def alone(config: TrainConfig) -> Trainer:
    """The transformer on one device, with weights that the seed decides."""
    return Trainer(Decoder(MODEL), config)


def _on_ranks(config: TrainConfig) -> Trainer:
    """The same on ranks."""
    return Trainer(Decoder(MODEL), config, mesh=make_mesh(dp=dist.get_world_size()), apply=(replicate(),))


def _data_parallel_traffic(world_size: int, itemsize: int) -> Traffic:
    """Wrapping; in each step the buckets, and of each rank its samples and targets, later its loss."""
    lengths = [parameter.numel() for parameter in Decoder(MODEL).parameters()]
    wrapping = ddp_wrapping([(lengths, itemsize)], world_size=world_size)
    step = ddp_step(lengths, world_size=world_size, itemsize=itemsize)
    gather = partial(comm_time, "all_gather", "ring", world_size=world_size, itemsize=8)
    gathers = [gather(length=count * world_size) for count in (2, 1)]
    return Traffic.predicted([wrapping, *[step, *gathers] * STEPS])


ROWS = Rows(lesson=3, prove=_data_parallel_rows)
