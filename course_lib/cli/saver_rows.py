"""Proof rows of memory savers on ranks: adapters beside frozen weights, and layers and logits that are made twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from course_lib.cli import training_rows
from course_lib.cli.proof import Row, Rows
from course_lib.comm.traces import Traffic
from course_lib.config import TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_step, ddp_wrapping
from course_lib.costs.comm.sharding import sharding_rows, sharding_step
from course_lib.costs.comm.tensor import TensorRow, rows_traffic, tensor_rows
from course_lib.costs.comm.traffic import CommTime
from course_lib.costs.model.units import UnitShapes, decoder_units
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.table.meta import all_on_meta
from course_lib.parallel.tensors.cutting import write_table
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.styles import styles_of
from course_lib.savers.lora import add_lora
from course_lib.split import split_sizes
from course_lib.training.batches import Batches
from course_lib.training.loss_technique import chunked_loss
from course_lib.training.recompute_technique import recompute
from course_lib.training.setup import Technique
from course_lib.training.sharding import fully_shard
from course_lib.training.techniques import replicate
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import assert_parallel_equals

_MODEL = replace(training_rows.MODEL, n_kv_heads=4)  # so that four ranks have a head of keys each
_RANK, _PIECES = 4, 4
_DTYPE = torch.float64
_SEQUENCES, _SEQUENCE, _STEPS = 8, 32, 2
_Formula = tuple[Sequence[CommTime], Sequence[int]]  # calls, and each rank's numbers of weights and gradients
_SAVING: tuple[Technique, ...] = (recompute(), chunked_loss(_PIECES))


def _saver_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """Adapters under three ways to share a model, then layers and logits made twice under two."""
    if world_size == 1 or _SEQUENCES % world_size:
        return
    data, matrices = {"dp": world_size}, {"tp": world_size}
    yield _row("LoRA, data parallel", text, data, (replicate(),), _adapters_copied(world_size), adapted=True)
    yield _row("LoRA, FULL_SHARD", text, data, (fully_shard(),), _adapters_sharded(world_size), adapted=True)
    if _MODEL.n_heads % world_size == 0:
        yield _row("LoRA, tensor", text, matrices, (tensor(),), _adapters_cut(world_size), adapted=True)
    yield _row("recompute, loss in 4, FULL_SHARD", text, data, (*_SAVING, fully_shard()), _again_sharded(world_size))
    if _MODEL.n_heads % world_size == 0:
        yield _row("recompute, loss in 4, tensor", text, matrices, (tensor(), *_SAVING), _again_cut(world_size))


def _row(
    name: str,
    text: bytes,
    mesh: dict[str, int],
    apply: Sequence[Technique],
    formula: _Formula,
    *,
    adapted: bool = False,
) -> Row:
    """Climb the verification ladder; compare the SGD run's traffic and memory with `formula`."""
    batches = Batches(text=text, batch_size=_SEQUENCES, sequence=_SEQUENCE)
    alone, on_ranks = partial(_alone, adapted=adapted), partial(_on_ranks, adapted=adapted, mesh=mesh, apply=apply)
    (world_size,) = mesh.values()
    report = assert_parallel_equals(alone, on_ranks, batches, world_size=world_size, steps=_STEPS, dtype=_DTYPE)
    calls, numbers = formula
    return Row(
        technique=name,
        world_size=world_size,
        deviation=report.max_deviation,
        tolerance=report.tolerance,
        traffic=Traffic.measured(report.ledger),
        predicted=Traffic.predicted(calls),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=tuple(_DTYPE.itemsize * count for count in numbers),
    )


def _model(adapted: bool) -> Decoder:
    model = Decoder(_MODEL)
    if adapted:
        add_lora(model, rank=_RANK)
    return model


def _alone(config: TrainConfig, adapted: bool) -> Trainer:
    return Trainer(_model(adapted), config)


def _on_ranks(config: TrainConfig, adapted: bool, mesh: dict[str, int], apply: Sequence[Technique]) -> Trainer:
    return Trainer(_model(adapted), config, mesh=make_mesh(**mesh), apply=apply)


def _lengths(*, adapted: bool, trained_only: bool = False) -> list[int]:
    """Of the model's tensors, with adapters A and B among them, which alone are trained then."""
    return [x.numel() for x in _model(adapted).parameters() if x.requires_grad or not trained_only]


def _adapters_copied(world_size: int) -> _Formula:
    """Everything once, then gradients of the adapters alone."""
    every, trained = _lengths(adapted=True), _lengths(adapted=True, trained_only=True)
    step = ddp_step(trained, world_size=world_size, itemsize=_DTYPE.itemsize)
    calls = [_wrapping(every, world_size), *[step, *_reports(world_size)] * _STEPS]
    return calls, [sum(every) + sum(trained)] * world_size


def _adapters_sharded(world_size: int) -> _Formula:
    """Frozen rows are gathered, twice a step but for the root's; those of adapters come back as sums."""
    return _sharded([*map(_with_adapters, decoder_units(_MODEL))], _lengths(adapted=True), world_size)


def _with_adapters(unit: UnitShapes) -> UnitShapes:
    """What was trained is frozen, and beside each matrix of a layer stand A and B."""
    whole = (*unit.opening, *unit.trained)
    beside = [((_RANK, shape[1]), (shape[0], _RANK)) for shape in whole if len(shape) == 2 and not unit.is_root]
    return replace(unit, trained=tuple(part for pair in beside for part in pair), frozen=whole, opening=())


def _again_sharded(world_size: int) -> _Formula:
    """What FULL_SHARD sends in any case: layers are gathered for backward, and compute again then."""
    return _sharded(decoder_units(_MODEL), _lengths(adapted=False), world_size)


def _sharded(units: Sequence[UnitShapes], every: Sequence[int], world_size: int) -> _Formula:
    rows = sharding_rows(units, strategy="FULL_SHARD", world_size=world_size, itemsize=_DTYPE.itemsize)
    step = [sharding_step(rows), *_reports(world_size), _number(world_size)]
    rows_of = {trained: [unit.numbers(trained=trained) for unit in units] for trained in (False, True)}
    held = [
        sum((1 + trained) * split_sizes(row, world_size)[rank] for trained, found in rows_of.items() for row in found)
        for rank in range(world_size)
    ]
    return [_wrapping(every, world_size), *step * _STEPS], held


def _adapters_cut(world_size: int) -> _Formula:
    """The activations of frozen matrices as ever, and between A and B a token's few numbers; of weights nothing.

    The embedding is frozen, so that no gradient enters the first layer's attention.
    """
    low = (_SEQUENCES, _SEQUENCE, _RANK)
    layers = _MODEL.n_layers
    rows = [
        TensorRow(where="q, k, v, gate, up", when="backward", operation="all_reduce", shape=low, times=5 * layers),
        TensorRow(where="o, down", when="forward", operation="all_reduce", shape=low, times=2 * layers),
    ]
    for row in tensor_rows(_MODEL, tp=world_size, batch=_SEQUENCES, sequence=_SEQUENCE):
        first = row.where == "attention" and row.when == "backward"
        rows.append(replace(row, times=row.times - first))
    return _cut(rows, world_size, adapted=True)


def _again_cut(world_size: int) -> _Formula:
    """Layers send once more what forward sent; of the loss each piece makes its three all-reduces, twice."""
    rows = []
    for row in tensor_rows(_MODEL, tp=world_size, batch=_SEQUENCES, sequence=_SEQUENCE, recompute="full"):
        if row.where == "loss":
            piece = (_SEQUENCES * _SEQUENCE // _PIECES,)
            row = replace(row, shape=piece, times=2 * _PIECES * row.times)
        rows.append(row)
    return _cut(rows, world_size, adapted=False)


def _cut(rows: Sequence[TensorRow], world_size: int, *, adapted: bool) -> _Formula:
    step = rows_traffic(rows, tp=world_size, itemsize=_DTYPE.itemsize)
    with all_on_meta():
        model = _model(adapted)
    layout = Layout(model, {"tp": world_size})
    write_table(model, layout, styles_of(model, plan_for(model)))
    held = [
        (1 + parameter.requires_grad) * layout.size_at(name, {"tp": 0}) for name, parameter in model.named_parameters()
    ]
    wrapping = _wrapping(_lengths(adapted=adapted), world_size)
    return [wrapping, *[step, _number(world_size)] * _STEPS], [sum(held)] * world_size


def _wrapping(lengths: Sequence[int], world_size: int) -> CommTime:
    """The first rank's model."""
    return ddp_wrapping([(lengths, _DTYPE.itemsize)], world_size=world_size)


def _reports(world_size: int) -> list[CommTime]:
    """Each rank's samples and targets, later its loss."""
    gather = partial(comm_time, "all_gather", "ring", world_size=world_size, itemsize=8)
    return [gather(length=count * world_size) for count in (2, 1)]


def _number(world_size: int) -> CommTime:
    """The gradient's norm."""
    return comm_time("all_reduce", "ring", world_size=world_size, length=1, itemsize=8)


ROWS = Rows(lesson=11, prove=_saver_rows)
