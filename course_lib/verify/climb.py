"""What the ladder makes one device and each rank do, and what it keeps of it."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.comm import ledger
from course_lib.comm.ledger import Event
from course_lib.config import TrainConfig
from course_lib.errors import four_parts
from course_lib.training.batches import Batch
from course_lib.verify.look import Look, copied, hides_gradients, norm_of, read_gradients, state_of
from course_lib.verify.narrowing import Narrowing, narrowest
from course_lib.verify.trainable import InParts, Make, Trainable, facts_of

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
    n_microbatches: int | None
    narrow: torch.dtype | None  # a lower precision in which the model computes inside, on one device
    has_buffers: bool  # whether the trainer shows them
    start: dict[str, Tensor]  # parameters and buffers
    second_start: dict[str, Tensor]  # where gradients are read from a step: the parameters of a second trainer
    output: Tensor | None
    gradients: dict[str, Tensor]
    halved: dict[str, Tensor]  # where gradients are read from a step: the same, read from one of half the learning rate
    norm: float  # NaN if the trainer does not give it
    after_first: dict[str, Tensor]
    second_gradients: dict[str, Tensor]
    end: dict[str, Tensor]
    n_steps: int
    losses: tuple[float, ...]  # empty if the trainer does not give them
    changed_batch: bool  # the first step has left other numbers in its batch
    peak_state_bytes: int
    step_s: float  # median
    events: tuple[Event, ...]  # of wrapping and the steps

    @property
    def is_read(self) -> bool:
        """Whether gradients were read from what a step did to the weights."""
        return bool(self.halved)


@dataclass(frozen=True, kw_only=True)
class AdamWTrace:
    """What AdamW left behind after k steps and after k more; on ranks these are taken by a trainer that loaded."""

    start: dict[str, Tensor]  # parameters alone
    half: dict[str, Tensor]
    loaded: dict[str, Tensor]  # what the k more began with
    end: dict[str, Tensor]
    losses: tuple[float, ...]
    saves: bool = True  # whether there is a checkpoint to look at


Trace = tuple[SgdTrace, AdamWTrace | None]


def climb_alone(make: Make, plan: Plan) -> SgdTrace:
    """SGD on one device with the weights of rank 0."""
    return sgd(make, plan, seed=0, watch=Narrowing())


def norms_without_clipping(make: Make, plan: Plan) -> list[float]:
    """The gradient's norm in each of AdamW's first k steps on one device; of SGD's, if only these show gradients."""
    found = []
    with born_with(0, plan.dtype):
        trainer = make(ADAMW)
        reads = hides_gradients(trainer) and not hasattr(trainer, "norm")
        trainer = make(SGD) if reads else trainer
        for number in range(plan.steps):
            before = copied(trainer.parameters()) if reads else {}
            _, norm, _ = _take_step(trainer, plan_batch(plan, number), _nothing)
            if reads:
                norm = norm_of(read_gradients(before, trainer.parameters(), SGD.learning_rate).values())
            found.append(norm_of(trainer.gradients().values()) if norm is None else norm)  # type: ignore[attr-defined]
    return found


def climb_rank(make: Make, plan: Plan) -> Trace:
    """SGD, then AdamW, on this rank; every rank is seeded differently, so that equal weights are not luck."""
    rank = dist.get_rank()
    first = sgd(make, plan, seed=rank)
    with comm.settings(ledger=False):
        return first, adamw(make, plan, rank) if plan.adamw else None


def sgd(make: Make, plan: Plan, seed: int, watch: Narrowing | None = None) -> SgdTrace:
    """k steps, looked at in between; what the ladder itself sends is not in the ledger."""
    with born_with(seed, plan.dtype):
        trainer = _made(make)
        with comm.settings(ledger=False):
            look = Look(trainer, SGD.learning_rate)
            with watch or nullcontext():
                output = trainer.output(plan_batch(plan, 0)[0]) if hasattr(trainer, "output") else None
        losses, norms, seconds, changed = [], [], [], False
        for number in range(plan.steps):
            batch = plan_batch(plan, number)
            kept = [x.clone() for x in batch] if number == 0 else []
            inside = watch if watch and number == 0 and not isinstance(trainer, InParts) else nullcontext()
            with inside:
                loss, norm, took = _take_step(trainer, batch, look)
            changed = changed or any(not torch.equal(*both) for both in zip(batch, kept, strict=False))
            losses.append(loss)
            norms.append(norm)
            seconds.append(took)
        events = tuple(ledger.current())
        with comm.settings(ledger=False):
            end, facts = state_of(trainer), facts_of(trainer)
            second_start, halved = _at_half_the_rate(make, plan, seed) if look.reads else ({}, {})
    return SgdTrace(
        **facts,
        narrow=narrowest([watch.dtype, *(x.dtype for x in look.start.values())], plan.dtype) if watch else None,
        has_buffers=hasattr(trainer, "buffers"),
        start=look.start,
        second_start=second_start,
        output=output,
        gradients=look.gradients[0],
        halved=halved,
        norm=math.nan if norms[0] is None else norms[0],
        after_first=look.after_first or end,
        second_gradients=look.gradients[1] if plan.steps > 1 else {},
        end=end,
        n_steps=plan.steps,
        losses=known(losses),
        changed_batch=changed,
        peak_state_bytes=look.peak_bytes,
        step_s=median(seconds),
        events=events,
    )


def _made(make: Make) -> Trainable:
    """A trainer for SGD, if it is one."""
    if not inspect.signature(make).parameters:
        rule = "the ladder trains with SGD first, since Adam divides errors of scale away"
        way_out = "write make(config), and use its optimizer and learning_rate"
        raise ValueError(four_parts("assert_parallel_equals", "make takes no configuration", rule, way_out))
    trainer = make(SGD)
    lacks = [name for name in ("parameters", "step") if not callable(getattr(trainer, name, None))]
    if lacks:
        values = f"make(config) gives a {type(trainer).__name__} without {' and '.join(lacks)}"
        rule, way_out = "a trainer has parameters() and step(batch)", "write them, or take an adapter"
        raise ValueError(four_parts("assert_parallel_equals", values, rule, way_out))
    return trainer


def _take_step(trainer: Trainable, batch: Batch, look: Callable[[], None]) -> tuple[float | None, float | None, float]:
    """Loss, norm, and seconds without those of `look`, which is called when the step's gradients are there."""
    started = time.perf_counter()
    loss = trainer.compute_gradients(batch) if isinstance(trainer, InParts) else trainer.step(batch)
    computed = time.perf_counter()
    with comm.settings(ledger=False):
        look()
    looked = time.perf_counter()
    if not isinstance(trainer, InParts):
        return loss, getattr(trainer, "norm", None), computed - started
    norm = trainer.clip()
    trainer.update()
    return loss, norm, time.perf_counter() - looked + computed - started


def adamw(make: Make, plan: Plan, seed: int, *, stops: bool = True) -> AdamWTrace:
    """k steps, a checkpoint that a fresh trainer loads (if it `stops`), k more steps."""
    assert plan.adamw is not None
    with born_with(seed, plan.dtype):
        trainer = make(plan.adamw)
        start = copied(trainer.parameters())
        losses = [trainer.step(plan_batch(plan, number)) for number in range(plan.steps)]
        half = state_of(trainer)
        saves = not stops or (hasattr(trainer, "save") and hasattr(trainer, "load"))
        if plan.folder is None or not saves:
            return AdamWTrace(start=start, half=half, loaded=half, end=half, losses=known(losses), saves=saves)
        if stops:
            trainer.save(plan.folder)  # type: ignore[attr-defined]
            torch.manual_seed(OTHER_SEEDS + seed)
            trainer = make(plan.adamw)
            trainer.load(plan.folder)  # type: ignore[attr-defined]
        loaded = state_of(trainer)
        losses += [trainer.step(plan_batch(plan, number)) for number in range(plan.steps, 2 * plan.steps)]
        return AdamWTrace(start=start, half=half, loaded=loaded, end=state_of(trainer), losses=known(losses))


def _at_half_the_rate(make: Make, plan: Plan, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A second trainer's weights, and its first gradient, read from a step of half the size: the same, if it is SGD."""
    config = replace(SGD, learning_rate=SGD.learning_rate / 2)
    with born_with(seed, plan.dtype):
        trainer = make(config)
        before = copied(trainer.parameters())
        trainer.step(plan_batch(plan, 0))
        return before, read_gradients(before, trainer.parameters(), config.learning_rate)


def known(losses: Sequence[float | None]) -> tuple[float, ...]:
    """All of them, or none."""
    there = tuple(loss for loss in losses if loss is not None)
    return there if len(there) == len(losses) else ()


def _nothing() -> None:
    """What is looked at where nothing is to be seen."""


def plan_batch(plan: Plan, number: int) -> Batch:
    """One batch, the same on every rank even if it is drawn; inputs that are no tokens take the run's dtype."""
    with torch.random.fork_rng(devices=[]), _dtype(plan.dtype):
        torch.default_generator.manual_seed(number)
        inputs, targets = plan.batch_of(number)
    return (inputs.to(plan.dtype) if inputs.is_floating_point() else inputs), targets


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
