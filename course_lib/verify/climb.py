"""What the ladder makes one device and each rank do, and what it keeps of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.comm import ledger
from course_lib.comm.ledger import Event
from course_lib.config import TrainConfig
from course_lib.training.batches import Batch
from course_lib.training.step import state_bytes
from course_lib.training.trainer import Trainer

Make = Callable[..., Trainer]  # of a configuration; for the museum also of a bug, a technique that comes last

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


@dataclass(frozen=True, kw_only=True)
class SgdTrace:
    """What plain SGD left behind; gradients and their norm are those of the first step."""

    parameter_names: tuple[str, ...]
    frozen: tuple[str, ...]
    tied: tuple[str, ...]  # what the model uses in several places
    places: dict[str, str]  # where each tensor lies, in words
    n_microbatches: int
    start: dict[str, Tensor]  # parameters and buffers
    output: Tensor
    gradients: dict[str, Tensor]
    norm: float
    end: dict[str, Tensor]
    losses: tuple[float, ...]
    peak_state_bytes: int
    step_s: float  # median
    events: tuple[Event, ...]  # of wrapping and the steps


@dataclass(frozen=True, kw_only=True)
class AdamWTrace:
    """What AdamW left behind after k steps and after k more; on ranks these are taken by a trainer that loaded."""

    half: dict[str, Tensor]
    end: dict[str, Tensor]
    losses: tuple[float, ...]


Trace = tuple[SgdTrace, AdamWTrace | None]


def climb_alone(make: Make, plan: Plan) -> SgdTrace:
    """SGD on one device with the weights of rank 0."""
    with born_with(0, plan.dtype):
        return sgd(make, plan)


def climb_rank(make: Make, plan: Plan) -> Trace:
    """SGD, then AdamW, on this rank; every rank is seeded differently, so that equal weights are not luck."""
    rank = dist.get_rank()
    with born_with(rank, plan.dtype):
        first = sgd(make, plan)
    with comm.settings(ledger=False):
        return first, adamw(make, plan, rank) if plan.adamw else None


def sgd(make: Make, plan: Plan) -> SgdTrace:
    """k steps, taken apart: what the ladder looks at in between is not in the ledger."""
    trainer = make(SGD)
    with comm.settings(ledger=False):
        start, output = _state_of(trainer), trainer.output(_plan_batch(plan, 0)[0])
    losses, norms, seconds, peak_bytes = [], [], [], 0
    gradients: dict[str, Tensor] = {}
    for number in range(plan.steps):
        batch = _plan_batch(plan, number)
        started = time.perf_counter()
        losses.append(trainer.compute_gradients(batch))
        computed = time.perf_counter()
        peak_bytes = max(peak_bytes, state_bytes(trainer.model))
        if number == 0:
            with comm.settings(ledger=False):
                gradients = _copied(trainer.gradients())
        looked = time.perf_counter()
        norms.append(trainer.clip())
        trainer.update()
        seconds.append(time.perf_counter() - looked + computed - started)
    events, layout = tuple(ledger.current()), trainer.local.layout
    with comm.settings(ledger=False):
        return SgdTrace(
            parameter_names=tuple(trainer.parameters()),
            frozen=tuple(name for name in layout.parameters if not layout.places[name].trained),
            tied=tuple({first for name, first in layout.first_name.items() if name != first}),
            places={name: layout.describe(name) for name in layout.places},
            n_microbatches=trainer.n_microbatches,
            start=start,
            output=output,
            gradients=gradients,
            norm=norms[0],
            end=_state_of(trainer),
            losses=tuple(losses),
            peak_state_bytes=peak_bytes,
            step_s=median(seconds),
            events=events,
        )


def adamw(make: Make, plan: Plan, seed: int, *, stops: bool = True) -> AdamWTrace:
    """k steps, a checkpoint that a fresh trainer loads (if it `stops`), k more steps."""
    assert plan.adamw is not None
    with born_with(seed, plan.dtype):
        trainer = make(plan.adamw)
        losses = [trainer.step(_plan_batch(plan, number)) for number in range(plan.steps)]
        half = _state_of(trainer)
        if plan.folder is None:
            return AdamWTrace(half=half, end=half, losses=tuple(losses))
        if stops:
            trainer.save(plan.folder)
            torch.manual_seed(OTHER_SEEDS + seed)
            trainer = make(plan.adamw)
            trainer.load(plan.folder)
        losses += [trainer.step(_plan_batch(plan, number)) for number in range(plan.steps, 2 * plan.steps)]
        return AdamWTrace(half=half, end=_state_of(trainer), losses=tuple(losses))


def _plan_batch(plan: Plan, number: int) -> Batch:
    """One batch; inputs that are no tokens take the run's dtype."""
    inputs, targets = plan.batch_of(number)
    return (inputs.to(plan.dtype) if inputs.is_floating_point() else inputs), targets


def _state_of(trainer: Trainer) -> dict[str, Tensor]:
    """Copies of parameters and buffers."""
    return _copied(trainer.parameters() | trainer.buffers())


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same names with tensors that later steps do not change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@contextmanager
def born_with(seed: int, dtype: torch.dtype) -> Iterator[None]:
    """Seed and default dtype of the models that are made inside; one thread, as every rank has."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(dtype)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)
