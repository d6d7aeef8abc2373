"""What one device and the ranks have alike when they climb: configurations, batches, and how a trainer is born."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from course_lib.config import TrainConfig
from course_lib.training.batches import Batch

SGD = TrainConfig(optimizer="sgd", learning_rate=0.1)
# Where a gradient crosses 0, its rounding turns Adam's step round, unless eps is far above: float32 rounds 0.1 by 1e-8.
ADAMW = TrainConfig(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1, adam_eps=1e-3)
OTHER_SEEDS = 1000  # the trainer that loads a checkpoint is born with other weights than the one that saved it


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to train on, and how far to climb."""

    batch_of: Callable[[int], Batch]
    steps: int
    dtype: torch.dtype
    adamw: TrainConfig | None = None  # None: SGD only
    folder: str | None = None  # for the checkpoint; None: none is written


def plan_batch(plan: Plan, number: int) -> Batch:
    """One batch, the same on every rank even if it is drawn; inputs that are no tokens take the run's dtype."""
    with torch.random.fork_rng(devices=[]), _dtype(plan.dtype):
        torch.default_generator.manual_seed(number)
        inputs, targets = plan.batch_of(number)
    if inputs.is_floating_point():
        inputs = inputs.to(plan.dtype)
    return inputs, targets


@contextmanager
def born_with(seed: int, dtype: torch.dtype) -> Iterator[None]:
    """Seed and default dtype of the models that are made inside; one thread, as every rank has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    try:
        with _dtype(dtype):
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _dtype(dtype: torch.dtype) -> Iterator[None]:
    """The default within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
