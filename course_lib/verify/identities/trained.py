"""Identities of whole trainings on ranks: of weights after some steps, of what goes on from a checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.config import TrainConfig
from course_lib.config.training import Optimizer
from course_lib.parallel.lossy.feedback import RESIDUAL
from course_lib.parallel.table.mesh import make_mesh, mesh_of
from course_lib.ranks import run_ranks
from course_lib.training.batches import Batch
from course_lib.training.setup import Technique
from course_lib.training.trainer import Trainer
from course_lib.verify.alike import born_with
from course_lib.verify.identities.averaged import off

_RANKS, _STEPS, _RATE = 4, 5, 0.1
_IN, _HIDDEN, _OUT, _ROWS = 12, 16, 5, 22  # rows do not divide by the ranks: shares are uneven

Apply = Sequence[Technique]


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """What is left of a training: (p, d) weights of each rank, and the mean that the trainer tells."""

    own: Tensor
    told: Tensor


def _small_training(
    apply: Apply, *, ranks: int = _RANKS, optimizer: Optimizer = "sgd", steps: int = _STEPS
) -> _Weights:
    """Train a small model along "dp"."""
    found = run_ranks(_train, ranks, apply, optimizer, steps)
    return _Weights(own=torch.stack([own for own, _ in found]), told=found[0][1])


def same_weights(apply: Apply, exact: Apply, *, optimizer: Optimizer = "sgd") -> float:
    """Two ways to train that end in the same mean of weights."""
    return off(_small_training(apply, optimizer=optimizer).told, _small_training(exact, optimizer=optimizer).told)


def one_worker(apply: Apply, optimizer: Optimizer = "adamw") -> float:
    """A method without anybody to talk to is plain training."""
    return off(
        _small_training(apply, ranks=1, optimizer=optimizer).told, run_ranks(_train, 1, (), optimizer, _STEPS)[0][1]
    )


def ranks_equal(apply: Apply) -> float:
    """All ranks hold the same weights in the end."""
    own = _small_training(apply).own
    return off(own, own[:1].expand_as(own))


def goes_on(apply: Apply, optimizer: Optimizer = "adamw") -> float:
    """Stopped, written, read by new trainers and gone on: what an uninterrupted training gives, on every rank."""
    with tempfile.TemporaryDirectory() as folder:
        stopped = run_ranks(_stopped, _RANKS, apply, optimizer, folder)
    return off(torch.stack(stopped), _small_training(apply, optimizer=optimizer, steps=2 * _STEPS).own)


def fewer_ranks(apply: Apply, fewer: int = 2) -> float:
    """Gone on by fewer ranks, the mean of what is still to be sent is what it was."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = zip(*run_ranks(_read_by_fewer, _RANKS, apply, fewer, folder), strict=True)
    return off(torch.stack(after[:fewer]).mean(0), torch.stack(before).mean(0))


def small_batch(step: int) -> Batch:
    """Rows and classes, the same in each call."""
    draws = torch.Generator().manual_seed(step)
    inputs = torch.randn(_ROWS, _IN, generator=draws, dtype=torch.float64)
    return inputs, torch.randint(0, _OUT, (_ROWS,), generator=draws)


def make_trainer(apply: Apply, optimizer: Optimizer, group: dist.ProcessGroup | None = None) -> Trainer:
    """On all ranks, or on some; each begins with weights of its own, which is the technique's to mend."""
    mesh = make_mesh(dp=dist.get_world_size()) if group is None else mesh_of(group, "dp")
    with born_with(dist.get_rank(), torch.float64):
        model = nn.Sequential(nn.Linear(_IN, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _OUT))
    return Trainer(
        model, TrainConfig(optimizer=optimizer, learning_rate=_RATE), mesh=mesh if apply else None, apply=apply
    )


def _train(apply: Apply, optimizer: Optimizer, steps: int) -> tuple[Tensor, Tensor]:
    trainer = make_trainer(apply, optimizer)
    for step in range(steps):
        trainer.step(small_batch(step))
    return _own(trainer), _flat(trainer.parameters().values())


def _stopped(apply: Apply, optimizer: Optimizer, folder: str) -> Tensor:
    first = make_trainer(apply, optimizer)
    for step in range(_STEPS):
        first.step(small_batch(step))
    first.save(folder)
    second = make_trainer(apply, optimizer)
    second.load(folder)
    for step in range(_STEPS, 2 * _STEPS):
        second.step(small_batch(step))
    return _own(second)


def _read_by_fewer(apply: Apply, fewer: int, folder: str) -> tuple[Tensor, Tensor]:
    first = make_trainer(apply, "sgd")
    for step in range(_STEPS):
        first.step(small_batch(step))
    first.save(folder)
    group = dist.new_group(list(range(fewer)))
    before = _residual(first)
    if dist.get_rank() >= fewer:
        return before, torch.zeros_like(before)
    second = make_trainer(apply, "sgd", group)
    second.load(folder)
    return before, _residual(second)


def _residual(trainer: Trainer) -> Tensor:
    """In the model's order, which is not that of buckets."""
    kept = trainer.apart.memory.kinds[RESIDUAL]
    return _flat([kept[name] for name in trainer.trained])


def _own(trainer: Trainer) -> Tensor:
    return _flat(trainer.local.parameters.values())


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([x.detach().flatten() for x in tensors])
