"""Proof rows of sharded data parallelism: ZeRO-1 to 3 and runs of ranks that share, with their bytes and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist

from course_lib.cli.proof import Row, Rows
from course_lib.cli.training_rows import MODEL, alone
from course_lib.comm.traces import Traffic
from course_lib.config import TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_wrapping
from course_lib.costs.comm.sharding import sharding_rows, sharding_step
from course_lib.costs.model.strategies import DataParallel
from course_lib.costs.model.units import decoder_units
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.split import split_sizes
from course_lib.training.batches import Batches
from course_lib.training.setup import Technique
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.trainer import Trainer
from course_lib.verify import assert_parallel_equals

_RUN = 2  # neighbours that share a copy of the model, where there are several
_TECHNIQUES: dict[DataParallel, Technique] = {
    "ZeRO-1": zero(1),
    "ZeRO-2": zero(2),
    "FULL_SHARD": fully_shard(),
    "HYBRID_SHARD": fully_shard(strategy="HYBRID_SHARD", shards=_RUN),
}
_DTYPE = torch.float64
_SEQUENCES, _SEQUENCE, _STEPS = 2, 32, 2


def _sharding_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """What all ranks share; on four also two runs of two ranks."""
    for strategy in _TECHNIQUES:
        if world_size > 1 and (strategy != "HYBRID_SHARD" or world_size == 2 * _RUN):
            yield _row(strategy, world_size, text)


def _row(strategy: DataParallel, world_size: int, text: bytes) -> Row:
    """Climb the verification ladder; compare the SGD run's traffic and memory with their formulas."""
    batches = Batches(text=text, batch_size=_SEQUENCES * world_size, sequence=_SEQUENCE)
    on_ranks = partial(_on_ranks, technique=_TECHNIQUES[strategy])
    report = assert_parallel_equals(alone, on_ranks, batches, world_size=world_size, steps=_STEPS, dtype=_DTYPE)
    return Row(
        technique=f"{strategy}, {str(_DTYPE).removeprefix('torch.')}",
        world_size=world_size,
        deviation=report.max_deviation,
        tolerance=report.tolerance,
        traffic=Traffic.measured(report.ledger),
        predicted=_traffic(strategy, world_size),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=tuple(_state_bytes(strategy, world_size)),
    )


def _on_ranks(config: TrainConfig, technique: Technique) -> Trainer:
    return Trainer(Decoder(MODEL), config, mesh=make_mesh(dp=dist.get_world_size()), apply=(technique,))


def _traffic(strategy: DataParallel, world_size: int) -> Traffic:
    """Wrapping; in each step what the strategy sends, the norm, and each rank's samples and targets, later its loss."""
    itemsize = _DTYPE.itemsize
    wrapping = ddp_wrapping([(_lengths(), itemsize)], world_size=world_size)
    rows = sharding_rows(
        decoder_units(MODEL), strategy=strategy, world_size=world_size, shards=_shards(strategy), itemsize=itemsize
    )
    gather = partial(comm_time, "all_gather", "ring", world_size=world_size, itemsize=itemsize)
    gathers = [gather(length=count * world_size) for count in (2, 1)]
    norm = comm_time("all_reduce", "ring", world_size=world_size, length=1, itemsize=itemsize)
    return Traffic.predicted([wrapping, *[sharding_step(rows), *gathers, norm] * _STEPS])


def _state_bytes(strategy: DataParallel, world_size: int) -> Iterator[int]:
    """For each rank: weights, whole under ZeRO-1 and ZeRO-2, and its pieces of the gradients."""
    whole, shards = sum(_lengths()), _shards(strategy) or world_size
    pieces = [split_sizes(unit.numbers(trained=True), shards) for unit in decoder_units(MODEL)]
    for rank in range(world_size):
        mine = sum(piece[rank % shards] for piece in pieces)
        yield _DTYPE.itemsize * (mine + (whole if strategy in ("ZeRO-1", "ZeRO-2") else mine))


def _shards(strategy: DataParallel) -> int | None:
    return _RUN if strategy == "HYBRID_SHARD" else None


def _lengths() -> Sequence[int]:
    return [parameter.numel() for parameter in Decoder(MODEL).parameters()]


ROWS = Rows(lesson=6, prove=_sharding_rows)
