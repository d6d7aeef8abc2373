"""Proof rows of tensor parallelism: ranks that share every matrix, alone, with replicas, and in a pipeline's stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from course_lib.cli import training_rows
from course_lib.cli.proof import Row, Rows
from course_lib.comm.traces import Traffic
from course_lib.config import ParallelConfig, TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_step, ddp_wrapping
from course_lib.costs.comm.pipeline import pipeline_step
from course_lib.costs.comm.tensor import rows_traffic, tensor_rows
from course_lib.costs.comm.traffic import CommTime
from course_lib.costs.model.states import rank_parameters
from course_lib.models.decoder import Decoder
from course_lib.parallel.data.buckets import trained
from course_lib.parallel.pipelines.stages import cut
from course_lib.parallel.table.layout import Layout, coordinates
from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.table.meta import all_on_meta
from course_lib.parallel.tensors.cutting import write_table
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.styles import styles_of
from course_lib.schedules import make_schedule
from course_lib.training.batches import Batches
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import assert_parallel_equals

_MODEL = replace(training_rows.MODEL, tied=True)  # two layers, of which two stages have one each
_DTYPE = torch.float64
_SEQUENCES, _SEQUENCE, _STEPS = 4, 32, 2
_SIZES = [2, 2]  # of the stages: a layer, with the embedding or with the head
_MICROBATCHES = 2


def _tensor_parallel_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """All ranks share matrices; then half of them, as replicas and as stages."""
    if _MODEL.n_heads % world_size == 0 and world_size > 1:
        yield tensor_row(ParallelConfig(tp=world_size), text)
    if world_size == 4:
        yield tensor_row(ParallelConfig(tp=2, dp=2), text)
        yield tensor_row(ParallelConfig(tp=2, pp=2), text)


def tensor_row(degrees: ParallelConfig, text: bytes) -> Row:
    """Climb the verification ladder; compare the SGD run's traffic and memory with their formulas."""
    batches = Batches(text=text, batch_size=_SEQUENCES, sequence=_SEQUENCE)
    world_size = degrees.world_size
    on_ranks = partial(_on_ranks, degrees=degrees)
    report = assert_parallel_equals(_alone, on_ranks, batches, world_size=world_size, steps=_STEPS, dtype=_DTYPE)
    states = [rank_parameters(_MODEL, degrees, stage=stage).total for stage in range(degrees.pp)]
    return Row(
        technique=f"tensor, {degrees.in_words}, {str(_DTYPE).removeprefix('torch.')}",
        world_size=world_size,
        deviation=report.max_deviation,
        tolerance=report.tolerance,
        traffic=Traffic.measured(report.ledger),
        predicted=_traffic(degrees),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=tuple(
            2 * _DTYPE.itemsize * count for count in states for _ in range(degrees.dp * degrees.tp)
        ),
    )


def _alone(config: TrainConfig) -> Trainer:
    return Trainer(Decoder(_MODEL), config)


def _on_ranks(config: TrainConfig, degrees: ParallelConfig) -> Trainer:
    apply = [tensor()]
    apply += [stages(make_schedule("1f1b", degrees.pp, _MICROBATCHES), sizes=_SIZES)] if degrees.pp > 1 else []
    apply += [replicate()] if degrees.dp > 1 else []
    mesh = make_mesh(pp=degrees.pp, dp=degrees.dp, tp=degrees.tp)
    return Trainer(Decoder(_MODEL), config, mesh=mesh, apply=apply)


def _traffic(degrees: ParallelConfig) -> Traffic:
    """What each rank sends along every axis, added up."""
    every = range(degrees.pp)
    shared = [Traffic.predicted(_among_sharers(degrees, stage)) for stage in every]
    copied = [Traffic.predicted(_among_replicas(degrees, stage)) for stage in every] if degrees.dp > 1 else []
    passed = Traffic.predicted(_among_stages(degrees)) if degrees.pp > 1 else None
    found = []
    for at in coordinates({"pp": degrees.pp, "dp": degrees.dp, "tp": degrees.tp}):
        met = [(shared[at["pp"]], at["tp"])]
        met += [(copied[at["pp"]], at["dp"])] if copied else []
        met += [(passed, at["pp"])] if passed else []
        found.append([(one.sent_bytes[i], one.received_bytes[i], one.messages[i]) for one, i in met])
    columns = zip(*(map(sum, zip(*parts, strict=True)) for parts in found), strict=True)
    sent, received, messages = (tuple(column) for column in columns)
    return Traffic(sent_bytes=sent, received_bytes=received, messages=messages)


def _among_sharers(degrees: ParallelConfig, stage: int) -> list[CommTime]:
    """Along tp: the whole model once, then every step the table's rows of what this stage has, and the norm."""
    tp, last = degrees.tp, stage == degrees.pp - 1
    weights = [parameter.numel() for parameter in Decoder(_MODEL).parameters()]
    parts = degrees.dp * (_MICROBATCHES if degrees.pp > 1 else 1)
    rows = []
    for row in tensor_rows(_MODEL, tp=tp, batch=_SEQUENCES // parts, sequence=_SEQUENCE):
        here = {"embedding": stage == 0, "head": last, "loss": last}.get(row.where, True)
        times = row.times // degrees.pp if row.where in ("attention", "feed-forward") else row.times
        rows += [replace(row, times=times)] if here else []
    passing = [row for row in rows if row.when != "step"] * (parts // degrees.dp)
    step = rows_traffic([*passing, *(row for row in rows if row.when == "step")], tp=tp, itemsize=_DTYPE.itemsize)
    return [ddp_wrapping([(weights, _DTYPE.itemsize)], world_size=tp), *[step, _number(tp)] * _STEPS]


def _among_replicas(degrees: ParallelConfig, stage: int) -> list[CommTime]:
    """Along dp: this rank's part of its stage, in each step its gradients, and twice a row of numbers."""
    lengths, itemsize = _lengths(degrees, stage), _DTYPE.itemsize
    gather = partial(comm_time, "all_gather", "ring", world_size=degrees.dp, itemsize=8)
    step = ddp_step(lengths, world_size=degrees.dp, itemsize=itemsize)
    wrapping = ddp_wrapping([(lengths, itemsize)], world_size=degrees.dp)
    return [wrapping, *[step, *(gather(length=count * degrees.dp) for count in (2, 1))] * _STEPS]


def _among_stages(degrees: ParallelConfig) -> list[CommTime]:
    """Along pp: this rank's part of the model, in each step what passes the cut, the tied gradient, loss and norm."""
    itemsize, hidden = _DTYPE.itemsize, _MODEL.hidden_size
    step = pipeline_step(
        [_SEQUENCES // (degrees.dp * _MICROBATCHES) * _SEQUENCE * hidden * itemsize],
        n_ranks=degrees.pp,
        n_microbatches=_MICROBATCHES,
        tied_bytes=_MODEL.vocab_size // degrees.tp * hidden * itemsize,
    )
    loss = comm_time("broadcast", "tree", world_size=degrees.pp, root=degrees.pp - 1, length=1, itemsize=8)
    wrapping = ddp_wrapping([(_lengths(degrees), itemsize)], world_size=degrees.pp)
    return [wrapping, *[step, loss, _number(degrees.pp)] * _STEPS]


def _lengths(degrees: ParallelConfig, stage: int | None = None) -> Sequence[int]:
    """Of the parts that each rank along tp has of the model's tensors, or of a stage's; all of them divide."""
    with all_on_meta():
        model = Decoder(_MODEL)
    layout = Layout(model, {"tp": degrees.tp})
    write_table(model, layout, styles_of(model, plan_for(model)))
    has = model if stage is None or degrees.pp == 1 else cut(model, _SIZES)[stage]
    return [layout.size_at(layout.first_name.get(name, name), {"tp": 0}) for name in trained(has)]


def _number(world_size: int) -> CommTime:
    """The gradient's norm along an axis."""
    return comm_time("all_reduce", "ring", world_size=world_size, length=1, itemsize=8)


ROWS = Rows(lesson=5, prove=_tensor_parallel_rows)
