"""The loss curve that people look at: AdamW, weight decay, clipping, and a restart half way."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.config import TrainConfig
from course_lib.ranks import run_ranks
from course_lib.ranks.patience import more_time
from course_lib.training.batches import Batch
from course_lib.verify.alike import OTHER_SEEDS, born_with
from course_lib.verify.trainable import MakeTrainer

_AS_PEOPLE_TRAIN = TrainConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, max_norm=1.0)
_STEP_S = 30.0  # a step's limit, on a machine that does other things meanwhile
_NEAR = 0.05  # a few per cent: two runs with other seeds are no nearer


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What a run logs, step by step."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]  # of the gradients, before clipping


def curve_alone(make: MakeTrainer, batch_of: Callable[[int], Batch], steps: int) -> Curve:
    """The curve of one device."""
    with tempfile.TemporaryDirectory() as folder:
        return train(make, batch_of, steps, folder, seed=0)


def curve_on_ranks(make: MakeTrainer, batch_of: Callable[[int], Batch], *, world_size: int, steps: int) -> Curve:
    """The curve that the first of the ranks logs; they are seeded differently."""
    with tempfile.TemporaryDirectory() as folder:
        curves: list[Curve] = run_ranks(_train_on_rank, world_size, make, batch_of, steps, folder)
    return curves[0]


def _train_on_rank(make: MakeTrainer, batch_of: Callable[[int], Batch], steps: int, folder: str) -> Curve:
    """The same on this rank; nobody wants to see what a long run sends."""
    with comm.settings(guard=False, ledger=False):
        return train(make, batch_of, steps, folder, seed=dist.get_rank())


def train(make: MakeTrainer, batch_of: Callable[[int], Batch], steps: int, folder: str, seed: int) -> Curve:
    """Half of the steps, a checkpoint, the other half by a trainer that loaded it."""
    losses, norms = [], []
    with born_with(seed, torch.float32):
        trainer = make(_AS_PEOPLE_TRAIN)
        for number in range(steps):
            if number == steps // 2:
                trainer.save(folder)
                torch.manual_seed(OTHER_SEEDS + seed)
                trainer = make(_AS_PEOPLE_TRAIN)
                trainer.load(folder)
            losses.append(trainer.compute_gradients(batch_of(number)))
            norms.append(trainer.clip())
            trainer.update()
            more_time(_STEP_S)
    return Curve(losses=tuple(losses), norms=tuple(norms))


def loss_curve_looks_right(losses: Sequence[float], reference: Sequence[float], near: float = _NEAR) -> bool:
    """What the eye checks: all numbers are there, the loss falls, and it ends near the reference's."""
    return all(map(math.isfinite, losses)) and ending(losses) < losses[0] and off(losses, reference) <= near


def off(losses: Sequence[float], reference: Sequence[float]) -> float:
    """By which share of the reference's the losses of the last quarter are off."""
    return abs(ending(losses) / ending(reference) - 1)


def ending(losses: Sequence[float]) -> float:
    """Mean of the last quarter."""
    last = losses[-max(1, len(losses) // 4) :]
    return sum(last) / len(last)
