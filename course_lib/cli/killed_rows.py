"""Proof row of a run that dies: it goes on from its last checkpoint on another number of ranks, as if nothing was."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm, ranks
from course_lib.cli.proof import Row, Rows
from course_lib.cli.sharded_tensor_rows import on_ranks, traffic_of
from course_lib.cli.training_rows import alone
from course_lib.comm.traces import Traffic
from course_lib.config import ParallelConfig, TrainConfig
from course_lib.training import series
from course_lib.training.batches import Batches
from course_lib.verify.alike import OTHER_SEEDS, born_with
from course_lib.verify.equality import TOLERANCES, deviation

_DTYPE = torch.float64
_SEQUENCE, _SEQUENCES_PER_RANK = 32, 2
_ADAMW = TrainConfig(optimizer="adamw", learning_rate=3e-3, weight_decay=0.1, adam_eps=1e-3, max_norm=1.0)
_STEPS, _EVERY, _KILLED_IN = 8, 2, 5  # step 5 is computed twice: the last checkpoint is that of step 4


def _killed_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """The last rank is killed, and there is nobody in its place; of one rank, two go on."""
    yield killed_row(world_size, world_size - 1 or 2, text)


def killed_row(begun_on: int, ends_on: int, text: bytes) -> Row:
    """Compare every loss of a run whose last rank was killed with those of one device that has never stopped.

    Traffic is that of the ranks which went on. Raises: AssertionError if nobody was killed.
    """
    batches = Batches(text=text, batch_size=_SEQUENCES_PER_RANK * begun_on, sequence=_SEQUENCE)
    with tempfile.TemporaryDirectory() as folder, born_with(0, _DTYPE):
        _be_killed(begun_on, batches, Path(folder))
        first, *_ = runs = ranks.run_ranks(train_on, ends_on, batches, Path(folder))
        steady = alone(_ADAMW)
        losses = [steady.step(batches.batch(number)) for number in range(_STEPS)]
    steps = _STEPS - first.begun_after
    return Row(
        technique=f"killed on {begun_on}, goes on with {ends_on}",
        world_size=ends_on,
        deviation=max(deviation(_tensor(run.losses), _tensor(losses)) for run in runs),
        tolerance=TOLERANCES[_DTYPE],
        traffic=Traffic.measured(ranks.ledger()),
        predicted=Traffic.predicted(traffic_of(ParallelConfig(dp=ends_on), steps)),
        step_s=max(run.step_s for run in runs),
        note=(
            f"killed: rank {begun_on - 1} of {begun_on} died by SIGKILL in step {_KILLED_IN}; {ends_on} "
            f"rank{'s' * (ends_on > 1)} went on after step {first.begun_after}, with the losses of a run that "
            "nobody killed"
        ),
    )


def _tensor(losses: Sequence[float]) -> Tensor:
    return torch.tensor(losses, dtype=_DTYPE)


def _be_killed(world_size: int, batches: Batches, folder: Path) -> None:
    """Train until the last rank is dead.

    Raises: AssertionError if it lives on, RankError if a rank fails by anything else.
    """
    try:
        ranks.run_ranks(train_on, world_size, batches, folder, _KILLED_IN)
    except ranks.RankError as error:
        if error.kind != "died":
            raise
        return
    raise AssertionError("killed: no rank died, though one killed itself")


class _Trained(NamedTuple):
    """What a rank says at the end of the run."""

    losses: Sequence[float]  # of all steps, also those before it was killed
    begun_after: int  # this step's checkpoint
    step_s: float  # median


def train_on(batches: Batches, folder: Path, killed_in: int = 0) -> _Trained:
    """On a rank: train from the folder's last checkpoint, if there is one; in step `killed_in` the last rank dies.

    Who goes on has other weights at first, so that a checkpoint which nobody reads would show.
    """
    seconds, seed = [], 0 if killed_in else OTHER_SEEDS
    with born_with(dist.get_rank() + seed, _DTYPE):
        trainer = on_ranks(_ADAMW, ParallelConfig(dp=dist.get_world_size()))
        with comm.settings(ledger=False):
            losses: list[float] = series.resume(trainer, folder) or []
            writer = series.Background(trainer, folder)
        begun_after = len(losses)
        for number in range(begun_after, _STEPS):
            started = time.perf_counter()
            losses.append(trainer.step(batches.batch(number)))
            seconds.append(time.perf_counter() - started)
            if number + 1 == killed_in and dist.get_rank() == dist.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if (number + 1) % _EVERY == 0:
                with comm.settings(ledger=False):
                    writer.save_step(number + 1, losses)
                    writer.finish()
    return _Trained(losses, begun_after, median(seconds))


ROWS = Rows(lesson=12, prove=_killed_rows)
