"""What the ladder makes one device and each rank do, and what it keeps of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

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
from course_lib.verify.narrowing import Narrowing

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
    """What plain SGD left behind; gradients and their norm are those of the first step.

    What was left after the first step and what gradients the second one had only helps to find a cause.
    """

    parameter_names: tuple[str, ...]
    frozen: tuple[str, ...]
    tied: tuple[str, ...]  # what the model uses in several places
    places: dict[str, str]  # where each tensor lies, in words
    n_shares: int  # into how many the ranks cut a batch
    n_microbatches: int
    narrow: torch.dtype | None  # a lower precision in which the model computes inside, on one device
    start: dict[str, Tensor]  # parameters and buffers
    output: Tensor
    gradients: dict[str, Tensor]
    norm: float
    after_first: dict[str, Tensor]
    second_gradients: dict[str, Tensor]
    end: dict[str, Tensor]
    losses: tuple[float, ...]
    peak_state_bytes: int
    step_s: float  # median
    events: tuple[Event, ...]  # of wrapping and the steps


@dataclass(frozen=True, kw_only=True)
class AdamWTrace:
    """What AdamW left behind after k steps and after k more; on ranks these are taken by a trainer that loaded."""

    half: dict[str, Tensor]
    loaded: dict[str, Tensor]  # what the k more began with
    end: dict[str, Tensor]
    losses: tuple[float, ...]


Trace = tuple[SgdTrace, AdamWTrace | None]


def climb_alone(make: Make, plan: Plan) -> SgdTrace:
    """SGD on one device with the weights of rank 0."""
    with born_with(0, plan.dtype):
        return sgd(make, plan, watch=Narrowing())


def norms_without_clipping(make: Make, plan: Plan) -> list[float]:
    """The gradient's norm in each of AdamW's first k steps on one device."""
    found = []
    with born_with(0, plan.dtype):
        trainer = make(ADAMW)
        for number in range(plan.steps):
            trainer.compute_gradients(plan_batch(plan, number))
            found.append(trainer.clip())
            trainer.update()
    return found


def climb_rank(make: Make, plan: Plan) -> Trace:
    """SGD, then AdamW, on this rank; every rank is seeded differently, so that equal weights are not luck."""
    rank = dist.get_rank()
    with born_with(rank, plan.dtype):
        first = sgd(make, plan)
    with comm.settings(ledger=False):
        return first, adamw(make, plan, rank) if plan.adamw else None


def sgd(make: Make, plan: Plan, watch: Narrowing | None = None) -> SgdTrace:
    """k steps, taken apart: what the ladder looks at in between is not in the ledger."""
    trainer = make(SGD)
    with comm.settings(ledger=False), watch or nullcontext():
        start, output = _state_of(trainer), trainer.output(plan_batch(plan, 0)[0])
    losses, norms, seconds, peak_bytes = [], [], [], 0
    gradients: list[dict[str, Tensor]] = [{}, {}]  # of the first two steps
    after = start
    for number in range(plan.steps):
        batch = plan_batch(plan, number)
        started = time.perf_counter()
        losses.append(trainer.compute_gradients(batch))
        computed = time.perf_counter()
        peak_bytes = max(peak_bytes, state_bytes([*trainer.model.parameters(), *trainer.local.parameters.values()]))
        with comm.settings(ledger=False):
            if number < len(gradients):
                gradients[number] = _copied(trainer.gradients())
            after = _state_of(trainer) if number == 1 else after
        looked = time.perf_counter()
        norms.append(trainer.clip())
        trainer.update()
        seconds.append(time.perf_counter() - looked + computed - started)
    events = tuple(ledger.current())
    with comm.settings(ledger=False):
        end = _state_of(trainer)
    return SgdTrace(
        **_facts(trainer),
        narrow=watch.dtype if watch else None,
        start=start,
        output=output,
        gradients=gradients[0],
        norm=norms[0],
        after_first=after if plan.steps > 1 else end,
        second_gradients=gradients[1],
        end=end,
        losses=tuple(losses),
        peak_state_bytes=peak_bytes,
        step_s=median(seconds),
        events=events,
    )


def _facts(trainer: Trainer) -> dict[str, Any]:
    """What is fixed about a trainer; the parameters' names take an exchange."""
    layout = trainer.local.layout
    with comm.settings(ledger=False):
        names = tuple(trainer.parameters())
    return {
        "parameter_names": names,
        "frozen": tuple(name for name in layout.parameters if not layout.places[name].trained),
        "tied": tuple({first for name, first in layout.first_name.items() if name != first}),
        "places": {name: layout.describe(name) for name in layout.places},
        "n_shares": trainer.local.size("dp"),
        "n_microbatches": trainer.n_microbatches,
    }


def adamw(make: Make, plan: Plan, seed: int, *, stops: bool = True) -> AdamWTrace:
    """k steps, a checkpoint that a fresh trainer loads (if it `stops`), k more steps."""
    assert plan.adamw is not None
    with born_with(seed, plan.dtype):
        trainer = make(plan.adamw)
        losses = [trainer.step(plan_batch(plan, number)) for number in range(plan.steps)]
        half = _state_of(trainer)
        if plan.folder is None:
            return AdamWTrace(half=half, loaded=half, end=half, losses=tuple(losses))
        loaded = half
        if stops:
            trainer.save(plan.folder)
            torch.manual_seed(OTHER_SEEDS + seed)
            trainer = make(plan.adamw)
            trainer.load(plan.folder)
        loaded = _state_of(trainer)
        losses += [trainer.step(plan_batch(plan, number)) for number in range(plan.steps, 2 * plan.steps)]
        return AdamWTrace(half=half, loaded=loaded, end=_state_of(trainer), losses=tuple(losses))


def plan_batch(plan: Plan, number: int) -> Batch:
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
