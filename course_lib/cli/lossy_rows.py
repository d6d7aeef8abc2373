"""Proof rows of averages that lose something: told to lose nothing they equal one device, and their bytes a formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
import torch.distributed as dist

from course_lib.cli.proof import Row, Rows
from course_lib.cli.training_rows import MODEL, SEQUENCE, alone
from course_lib.comm.traces import Traffic
from course_lib.config import TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_wrapping
from course_lib.costs.comm.less import double_squeeze_time, gather_time, gossip_time, power_sgd_time, sum_time
from course_lib.costs.comm.lossy_messages import top_k_bytes
from course_lib.costs.comm.traffic import CommTime
from course_lib.less.largest_values import top_k
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.split import split_sizes
from course_lib.training.batches import Batches
from course_lib.training.gossip_technique import gossip
from course_lib.training.local_technique import local
from course_lib.training.lossy_technique import double_squeeze, error_feedback, power_sgd
from course_lib.training.setup import Technique
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals
from course_lib.verify.pairs import GRADIENTS, LOSSES, OUTPUT, PARAMETERS

_DTYPE = torch.float64
_STEPS = 2
_WHOLE = 1.0  # of a gradient
_FULL = 256  # as many columns as any matrix here has rows or columns
# A rank's own gradients are no mean, and AdamW's steps are no straight line: what is left of the ladder.
_OWN = (OUTPUT, GRADIENTS, PARAMETERS, LOSSES)


@dataclass(frozen=True, kw_only=True)
class _Exact:
    """A method that loses nothing, and what it sends in a step."""

    technique: Technique
    step: CommTime
    rungs: tuple[str, ...] = RUNGS


def _lossy_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """All ranks, by each method."""
    if world_size == 1:
        return
    for name, case in _cases(world_size).items():
        yield _row(name, case, world_size, text)


def _cases(ranks: int) -> dict[str, _Exact]:
    shapes = [tuple(parameter.shape) for parameter in Decoder(MODEL).parameters()]
    sizes, itemsize = [prod(shape) for shape in shapes], _DTYPE.itemsize
    whole = sum_time(sum(sizes), itemsize=itemsize, ranks=ranks, algorithm="ring")
    message = sum(top_k_bytes(size, _WHOLE, itemsize) for size in sizes)
    stretches = [
        sum(top_k_bytes(split_sizes(size, ranks)[rank], _WHOLE, itemsize) for size in sizes) for rank in range(ranks)
    ]
    factors = power_sgd_time(shapes, _FULL, itemsize=itemsize, ranks=ranks, algorithm="ring")
    return {
        "top-k of all, with memory": _Exact(
            technique=replicate(lossy=error_feedback(top_k(_WHOLE))), step=gather_time(message, ranks=ranks)
        ),
        "both ways by top-k of all": _Exact(
            technique=replicate(lossy=double_squeeze(top_k(_WHOLE))), step=double_squeeze_time(stretches)
        ),
        "factors of full rank": _Exact(technique=replicate(lossy=power_sgd(_FULL)), step=factors),
        "local, a meeting each step": _Exact(technique=local(1), step=whole, rungs=_OWN),
        "gossip of all with all": _Exact(
            technique=gossip("complete"),
            step=gossip_time([ranks - 1] * ranks, sum(sizes) * itemsize),
            rungs=_OWN,
        ),
    }


def _row(name: str, case: _Exact, ranks: int, text: bytes) -> Row:
    """Climb the verification ladder; compare the SGD run's traffic and memory with their formulas."""
    batches = Batches(text=text, batch_size=2 * ranks, sequence=SEQUENCE)
    make = partial(_on_ranks, technique=case.technique)
    report = assert_parallel_equals(
        alone, make, batches, world_size=ranks, steps=_STEPS, dtype=_DTYPE, rungs=case.rungs
    )
    sizes = [parameter.numel() for parameter in Decoder(MODEL).parameters()]
    return Row(
        technique=name,
        world_size=ranks,
        deviation=report.max_deviation,
        tolerance=report.tolerance,
        traffic=Traffic.measured(report.ledger),
        predicted=_traffic(sizes, case.step, ranks),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=(2 * sum(sizes) * _DTYPE.itemsize,) * ranks,
    )


def _on_ranks(config: TrainConfig, technique: Technique) -> Trainer:
    return Trainer(Decoder(MODEL), config, mesh=make_mesh(dp=dist.get_world_size()), apply=(technique,))


def _traffic(sizes: Sequence[int], step: CommTime, ranks: int) -> Traffic:
    """Equal weights to begin with; in each step the method, and of each rank its counts, and later its loss."""
    wrapping = ddp_wrapping([(list(sizes), _DTYPE.itemsize)], world_size=ranks)
    gather = partial(comm_time, "all_gather", "ring", world_size=ranks, itemsize=8)
    return Traffic.predicted([wrapping, *[step, *(gather(length=count * ranks) for count in (2, 1))] * _STEPS])


ROWS = Rows(lesson=10, prove=_lossy_rows)
