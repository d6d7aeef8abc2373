"""Proof rows of training: a small transformer on real text, on ranks and on one device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from course_lib import ranks
from course_lib.cli.proof import Row, Traffic
from course_lib.config import ModelConfig
from course_lib.costs import comm_time
from course_lib.costs.states import sgd_state_bytes
from course_lib.models.decoder import Decoder
from course_lib.parallel.ddp import average_gradients, broadcast_parameters
from course_lib.training.batches import Batches
from course_lib.units import format_seconds
from course_lib.verify import Experiment, Technique, assert_parallel_equals

MODEL = ModelConfig(
    name="tour", hidden_size=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_size=176, vocab_size=256, tied=False
)
SEQUENCES_PER_RANK = 4
SEQUENCE = 64
LEARNING_RATE = 0.2
PRECISIONS = (  # dtype, steps, tolerance: rounding grows with the steps; in float64 nothing else can be left
    (torch.float32, 20, 1e-5),
    (torch.float64, 8, 1e-11),
)


def data_parallel_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """Gradients averaged by our own ring."""
    for dtype, steps, tolerance in PRECISIONS:
        yield data_parallel_row(world_size, text, dtype=dtype, steps=steps, tolerance=tolerance)


def data_parallel_row(world_size: int, text: bytes, *, dtype: torch.dtype, steps: int, tolerance: float) -> Row:
    """Train on ranks and on one device; compare values, traffic and memory."""
    report = assert_parallel_equals(
        Experiment(
            make_model=partial(make_model, dtype),
            batches=Batches(text=text, batch_size=SEQUENCES_PER_RANK * world_size, sequence=SEQUENCE),
            steps=steps,
            learning_rate=LEARNING_RATE,
        ),
        Technique(prepare=broadcast_parameters, after_backward=average_gradients),
        world_size=world_size,
        tolerance=tolerance,
    )
    name = f"data parallel by ring, {str(dtype).removeprefix('torch.')}"
    return Row(
        technique=name,
        world_size=report.world_size,
        deviation=report.max_deviation,
        tolerance=tolerance,
        traffic=Traffic.measured(ranks.ledger()),
        predicted=data_parallel_traffic(world_size, steps, dtype.itemsize),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=sgd_state_bytes(MODEL, itemsize=dtype.itemsize),
        note=(
            f"{name}: loss {report.losses[0]:.3f} -> {report.losses[-1]:.3f} nats in {steps} steps; "
            f"a step on one device takes {format_seconds(report.alone_step_s)}"
        ),
    )


def make_model(dtype: torch.dtype) -> Decoder:
    """The transformer, with weights that the seed decides."""
    return Decoder(MODEL).to(dtype)


def data_parallel_traffic(world_size: int, steps: int, itemsize: int) -> Traffic:
    """One broadcast of each parameter, then in each step one all-reduce of each gradient."""
    sizes = [parameter.numel() for parameter in Decoder(MODEL).parameters()]
    cost = partial(comm_time, world_size=world_size, itemsize=itemsize)
    copies = [cost("broadcast", "tree", length=size) for size in sizes]
    sums = [cost("all_reduce", "ring", length=size) for size in sizes]
    return Traffic.predicted([*copies, *sums * steps])
