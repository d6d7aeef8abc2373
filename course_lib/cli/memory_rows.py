"""Proof rows of memory: what ZeRO's stages leave on each rank, and what autograd keeps, against the formulas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import ranks
from course_lib.cli.proof import Row, Rows
from course_lib.comm.traces import Traffic
from course_lib.config import ModelConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.model.activations import Recompute, activation_bytes
from course_lib.costs.model.conventions import Convention, find_convention
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.states import state_bytes
from course_lib.gauges.allocated import saved_bytes
from course_lib.gauges.plain_zero import Formats, flat, taken
from course_lib.gauges.zero_run import ZeroRun, train_in_turn, train_sharded, zero_deviation
from course_lib.models.decoder import Decoder
from course_lib.savers.checkpointing import checkpoint_layers
from course_lib.training.batches import Batch, Batches
from course_lib.training.step import next_token_loss
from course_lib.verify.equality import deviation

_MODEL = ModelConfig(  # wide enough that what a formula leaves out is small
    name="tour", hidden_size=256, n_layers=2, n_heads=8, n_kv_heads=2, ffn_size=704, vocab_size=256, tied=False
)
_CONVENTION = find_convention("megatron")  # sums gradients in fp32, so that the order of the sum shows little
_SEQUENCES_PER_RANK = 2
SEQUENCE = 64
STEPS = 3
_TOLERANCE = 1e-5
_ACTIVATIONS_WITHIN = 0.01


def _memory_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """Every stage of ZeRO, then activations kept and recomputed."""
    batches = Batches(text=text, batch_size=_SEQUENCES_PER_RANK * world_size, sequence=SEQUENCE)
    formats = Formats.of_bytes(_CONVENTION.weights, _CONVENTION.gradients)
    run = ZeroRun(model=_MODEL, formats=formats, batches=batches, steps=STEPS)
    alone = train_in_turn(run, world_size)
    for stage in range(4):
        yield _zero_row(run, stage, alone, world_size)
    yield _activation_row(batches, "none", world_size)
    yield _activation_row(batches, "layers", world_size)


def _zero_row(run: ZeroRun, stage: int, alone: Tensor, world_size: int) -> Row:
    """Train under one stage of ZeRO; `alone` are one device's weights."""
    traces = ranks.run_ranks(train_sharded, world_size, run, stage)
    count = model_parameters(run.model)
    predicted = [
        state_bytes(count, _CONVENTION, zero_stage=stage, shards=world_size, rank=rank) for rank in range(world_size)
    ]
    return Row(
        technique=f"ZeRO stage {stage}, AdamW, bf16 and fp32",
        world_size=len(traces),
        deviation=zero_deviation(traces, alone),
        tolerance=_TOLERANCE,
        traffic=Traffic.measured(ranks.ledger()),
        predicted=_zero_traffic(_CONVENTION, stage, world_size, count, run.steps),
        step_s=max(trace.step_s for trace in traces),
        state_bytes=tuple(trace.states.total for trace in traces),
        predicted_state_bytes=tuple(states.total for states in predicted),
    )


def _zero_traffic(convention: Convention, stage: int, world_size: int, count: int, steps: int) -> Traffic:
    """One broadcast of the weights, then in each step an all-reduce, or a reduce-scatter and an all-gather."""
    cost = partial(comm_time, world_size=world_size, length=count)
    each_step = [
        cost("reduce_scatter", "ring", itemsize=convention.gradients),
        cost("all_gather", "ring", itemsize=convention.weights),
    ]
    if stage == 0:
        each_step = [cost("all_reduce", "ring", itemsize=convention.gradients)]
    return Traffic.predicted([cost("broadcast", "tree", itemsize=convention.weights), *each_step * steps])


def _activation_row(batches: Batches, recompute: Recompute, world_size: int) -> Row:
    """One forward and backward pass of each rank on its own sequences; nothing is sent."""
    results = ranks.run_ranks(_run_activations, world_size, batches, recompute)
    found, gradients, seconds = zip(*results, strict=True)
    alone = [pass_once(_new_model(), batches.shard(0, rank, world_size))[1] for rank in range(world_size)]
    none = (0,) * world_size
    predicted = activation_bytes(
        _MODEL, batch=_SEQUENCES_PER_RANK, sequence=SEQUENCE, itemsize=torch.float32.itemsize, recompute=recompute
    )
    return Row(
        technique=f"activations, recompute {recompute}, fp32",
        world_size=len(results),
        deviation=max(deviation(got, want) for got, want in zip(gradients, alone, strict=True)),
        tolerance=_TOLERANCE,
        traffic=Traffic.measured(ranks.ledger()),
        predicted=Traffic(sent_bytes=none, received_bytes=none, messages=none),
        step_s=max(seconds),
        state_bytes=found,
        predicted_state_bytes=(predicted,) * world_size,
        states_within=_ACTIVATIONS_WITHIN,
    )


def _run_activations(batches: Batches, recompute: Recompute) -> tuple[int, Tensor, float]:
    """On a rank: (bytes saved, gradients, seconds)."""
    model = _new_model()
    if recompute == "layers":
        checkpoint_layers(model.layers)
    inputs, targets = batches.shard(0, dist.get_rank(), dist.get_world_size())
    batch = inputs.clone(), targets.clone()  # not a view, which keeps the other ranks' sequences too
    started = time.perf_counter()
    found, gradients = pass_once(model, batch)
    return found, gradients, time.perf_counter() - started


def _new_model() -> Decoder:
    """The transformer, with the same weights each time."""
    torch.manual_seed(0)
    return Decoder(_MODEL)


def pass_once(model: Decoder, batch: Batch) -> tuple[int, Tensor]:
    """Forward and backward: the bytes that autograd saved between them, and all gradients in one row."""
    losses: list[Tensor] = []
    found = saved_bytes(model, lambda: losses.append(next_token_loss(model, batch)))
    losses[0].backward()
    return found, flat([taken(parameter) for parameter in model.parameters()])


ROWS = Rows(lesson=1, prove=_memory_rows)
