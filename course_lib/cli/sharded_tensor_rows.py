"""Proof rows of FSDP x TP: ranks along "dp" share what "tp" has cut, and a checkpoint goes from layout to layout."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm, ranks
from course_lib.cli.proof import Row, Rows
from course_lib.cli.training_rows import MODEL, alone
from course_lib.comm.traces import Traffic
from course_lib.config import ParallelConfig, TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_wrapping
from course_lib.costs.comm.sharding import sharding_rows, sharding_step
from course_lib.costs.comm.tensor import tensor_step
from course_lib.costs.comm.traffic import CommTime
from course_lib.costs.model.units import UnitShapes, decoder_units
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.layout import coordinates
from course_lib.parallel.table.mesh import make_mesh
from course_lib.split import split_sizes
from course_lib.training.batches import Batches
from course_lib.training.sharded_checkpoint import load_pieces, save_pieces
from course_lib.training.sharding import fully_shard
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import assert_parallel_equals
from course_lib.verify.alike import born_with
from course_lib.verify.equality import TOLERANCES, deviation

_DTYPE = torch.float64
_SEQUENCES_PER_RANK, _SEQUENCE = 2, 32
_STEPS = 2  # of the ladder
_ADAMW = TrainConfig(optimizer="adamw", learning_rate=3e-3, weight_decay=0.1, adam_eps=1e-3, max_norm=1.0)
_STEPS_EACH = 5  # of AdamW on every layout
_STATES = 3  # numbers that last of each parameter: the weight, and AdamW's two


def _sharded_tensor_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """On an even number of ranks, from four: pairs share matrices, and the pairs share what is left of them."""
    if world_size % 2 or world_size < 4:
        return
    pairs = ParallelConfig(dp=world_size // 2, tp=2)
    batches = Batches(text=text, batch_size=_SEQUENCES_PER_RANK * world_size, sequence=_SEQUENCE)
    yield _ladder_row(pairs, batches)
    yield handed_on_row([pairs, ParallelConfig(dp=world_size), pairs], batches)


def _ladder_row(degrees: ParallelConfig, batches: Batches) -> Row:
    """Climb the verification ladder; compare the SGD run's traffic and memory with their formulas."""
    report = assert_parallel_equals(
        alone, partial(on_ranks, degrees=degrees), batches, world_size=degrees.world_size, steps=_STEPS, dtype=_DTYPE
    )
    return Row(
        technique=f"FULL_SHARD x tensor, {degrees.in_words}",
        world_size=degrees.world_size,
        deviation=report.max_deviation,
        tolerance=report.tolerance,
        traffic=Traffic.measured(report.ledger),
        predicted=Traffic.predicted(traffic_of(degrees, _STEPS)),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=tuple(2 * _DTYPE.itemsize * numbers for numbers in _numbers_held(degrees)),
    )


def handed_on_row(layouts: Sequence[ParallelConfig], batches: Batches) -> Row:
    """Train with AdamW, save in pieces, go on at the next layout; one device takes over the last pieces.

    All its numbers are compared with those of one device that has never stopped.
    """
    world_size = layouts[0].world_size
    with tempfile.TemporaryDirectory() as folder, born_with(0, _DTYPE):
        runs = ranks.run_ranks(hand_on, world_size, layouts, batches, Path(folder))
        steady = alone(_ADAMW)
        losses = [steady.step(batches.batch(number)) for number in range(len(layouts) * _STEPS_EACH)]
        last = alone(_ADAMW)
        load_pieces(last, Path(folder) / str(len(layouts) - 1))
    got, want = _numbers(last), _numbers(steady)
    costs = chain.from_iterable(traffic_of(degrees, _STEPS_EACH) for degrees in layouts)
    return Row(
        technique="checkpoint, " + ", ".join(f"{one.dp} x {one.tp}" for one in layouts),
        world_size=world_size,
        deviation=max(deviation(got[name], x) for name, x in want.items()),
        tolerance=TOLERANCES[_DTYPE],
        traffic=Traffic.measured(ranks.ledger()),
        predicted=Traffic.predicted(costs),
        step_s=max(run.step_s for run in runs),
        state_bytes=tuple(run.lasting_bytes for run in runs),
        predicted_state_bytes=tuple(_STATES * _DTYPE.itemsize * n for n in _numbers_held(layouts[-1])),
        note=(
            f"checkpoint: loss {losses[0]:.3f} -> {runs[0].last_loss:.3f} nats in {len(losses)} steps of AdamW; "
            "each layout (dp x tp) takes over the pieces of the one before, and one device those of the last"
        ),
    )


class _Run(NamedTuple):
    """What a rank says when all layouts have had their turn."""

    lasting_bytes: int  # of weights and AdamW's states
    last_loss: float
    step_s: float  # median


def hand_on(layouts: Sequence[ParallelConfig], batches: Batches, folder: Path) -> _Run:
    """On a rank: some steps at every layout, which begins with other weights and takes over the last one's pieces."""
    seconds, loss = [], 0.0
    for turn, degrees in enumerate(layouts):
        with born_with(dist.get_rank() + turn, _DTYPE):
            trainer = on_ranks(_ADAMW, degrees)
            with comm.settings(ledger=False):
                if turn:
                    load_pieces(trainer, folder / str(turn - 1))
            for number in range(turn * _STEPS_EACH, (turn + 1) * _STEPS_EACH):
                started = time.perf_counter()
                loss = trainer.step(batches.batch(number))
                seconds.append(time.perf_counter() - started)
            with comm.settings(ledger=False):
                save_pieces(trainer, folder / str(turn))
    lasting = sum(x.nbytes for kinds in trainer.parts().values() for kind, x in kinds.items() if kind != "step")
    return _Run(lasting, loss, median(seconds))


def on_ranks(config: TrainConfig, degrees: ParallelConfig) -> Trainer:
    """The transformer on ranks: tp cuts its matrices, and dp shards what is left of them."""
    mesh = make_mesh(dp=degrees.dp, tp=degrees.tp)
    return Trainer(Decoder(MODEL), config, mesh=mesh, apply=(tensor(), fully_shard()))


def _numbers(one_device: Trainer) -> dict[str, Tensor]:
    """Weights and optimizer's states, each by a name of its own."""
    return {f"{name} {kind}": x for name, kinds in one_device.parts().items() for kind, x in kinds.items()}


def traffic_of(degrees: ParallelConfig, steps: int) -> list[CommTime]:
    """Along tp and along dp: wrapping, and in every step what goes on there, with the norm's number."""
    dp, tp, itemsize = degrees.dp, degrees.tp, _DTYPE.itemsize
    units = decoder_units(MODEL, tp=tp)
    rows = sharding_rows(units, strategy="FULL_SHARD", world_size=dp, itemsize=itemsize)
    reports = [comm_time("all_gather", "ring", world_size=dp, length=n * dp, itemsize=8) for n in (2, 1)]
    passes = tensor_step(MODEL, tp=tp, batch=_SEQUENCES_PER_RANK * tp, sequence=_SEQUENCE, itemsize=itemsize)
    along = {
        "tp": [_wrapping(decoder_units(MODEL), tp), *[passes, _norm(tp)] * steps],
        "dp": [_wrapping(units, dp), *[sharding_step(rows), *reports, _norm(dp)] * steps],
    }
    places = [*coordinates({"dp": dp, "tp": tp})]
    return [cost.in_rows([at[axis] for at in places]) for axis, costs in along.items() for cost in costs]


def _wrapping(units: Sequence[UnitShapes], world_size: int) -> CommTime:
    """These tensors, which fit into one bucket, from the first rank to the others."""
    return ddp_wrapping([([sum(unit.numbers(trained=True) for unit in units)], _DTYPE.itemsize)], world_size=world_size)


def _norm(world_size: int) -> CommTime:
    """The gradient's norm along an axis."""
    return comm_time("all_reduce", "ring", world_size=world_size, length=1, itemsize=8)


def _numbers_held(degrees: ParallelConfig) -> list[int]:
    """By rank, the parameters of which it has pieces: of every unit's part a stretch."""
    units = decoder_units(MODEL, tp=degrees.tp)
    stretches = [split_sizes(unit.numbers(trained=True), degrees.dp) for unit in units]
    return [sum(stretch[at["dp"]] for stretch in stretches) for at in coordinates({"dp": degrees.dp, "tp": degrees.tp})]


ROWS = Rows(lesson=7, prove=_sharded_tensor_rows)
