"""The ladder's climb on one page: what a rung is, how a rank climbs, and how two climbs are compared.

A **rung** is what one device and the ranks must have alike. Rungs stand in the order in which a mistake shows, so the
first one that fails says where to look:

- output: of the model, for the first batch
- gradients: of the first step, whole
- gradient norm: their length as one vector
- parameters: after k steps of plain SGD
- loss curve: of these steps
- AdamW: parameters after k steps of AdamW, with weight decay and clipping
- save and load: parameters after k more steps, by a new trainer that has loaded a checkpoint

Plain SGD comes first, since Adam divides errors of scale away. AdamW and the checkpoint come last, since plain SGD has
no state that could be wrong.

To **climb** is to train these few steps and to write down what each rung asks for: a **trace**. One device and every
rank run the same functions, `sgd` and `adamw`. To **compare** is to look at pairs of tensors, rung by rung, and to stop
at the first rung with a pair that is further apart than rounding.

`ladder` calls all this from `assert_parallel_equals`. What both sides have alike is in `alike`, what is written down in
`look` and `trace`, and what exactly must be equal in `pairs`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.comm import ledger
from course_lib.training.batches import Batch
from course_lib.verify.alike import OTHER_SEEDS, SGD, Plan, born_with, plan_batch
from course_lib.verify.diagnosis import not_equal
from course_lib.verify.look import Look, at_half_the_rate, copied, state_of
from course_lib.verify.narrowing import Narrowing, narrowest
from course_lib.verify.pairs import (
    ADAMW,
    GRADIENTS,
    LOSSES,
    NORM,
    OUTPUT,
    PARAMETERS,
    RUNGS,
    Pair,
    gradient_pairs,
    left_out,
    numbers,
    state_pairs,
)
from course_lib.verify.replay import Replay
from course_lib.verify.trace import AdamWTrace, SgdTrace, Trace
from course_lib.verify.trainable import InParts, Make, Trainable, facts_of, made_for_sgd

# How a rank climbs.


def climb_alone(make: Make, plan: Plan) -> SgdTrace:
    """SGD on one device with the weights of rank 0."""
    return sgd(make, plan, seed=0, watch=Narrowing())


def climb_rank(make: Make, plan: Plan) -> Trace:
    """SGD, then AdamW, on this rank; every rank is seeded differently, so that equal weights are not luck."""
    rank = dist.get_rank()
    first = sgd(make, plan, seed=rank)
    if plan.adamw is None:
        return first, None
    with comm.settings(ledger=False):
        return first, adamw(make, plan, seed=rank)


def sgd(make: Make, plan: Plan, seed: int, watch: Narrowing | None = None) -> SgdTrace:
    """k steps, looked at in between; what the ladder itself sends is not in the ledger."""
    steps = []
    with born_with(seed, plan.dtype):
        trainer = made_for_sgd(make)
        with comm.settings(ledger=False):
            look = Look(trainer, SGD.learning_rate)
            inputs, _ = plan_batch(plan, 0)
            with watch or nullcontext():
                output = trainer.output(inputs) if hasattr(trainer, "output") else None
        for number in range(plan.steps):
            batch = plan_batch(plan, number)
            inside: AbstractContextManager[object] = nullcontext()
            if watch and number == 0 and not isinstance(trainer, InParts):
                inside = watch  # one of ours has shown in its output in which precision it computes
            with inside:
                steps.append(take_step(trainer, batch, look))
        events = tuple(ledger.current())
        with comm.settings(ledger=False):
            end, facts = state_of(trainer), facts_of(trainer)
            # Gradients that had to be read from a step of SGD are read again, to see that it is SGD.
            second_start, halved = at_half_the_rate(make, plan, seed) if look.reads else ({}, {})
    narrow = None
    if watch:
        weights = [x.dtype for x in look.start.values()]
        narrow = narrowest([watch.dtype, *weights], plan.dtype)
    return SgdTrace(
        **facts,
        narrow=narrow,
        has_buffers=hasattr(trainer, "buffers"),
        start=look.start,
        second_start=second_start,
        output=output,
        gradients=look.gradients[0],
        halved=halved,
        norm=math.nan if steps[0].norm is None else steps[0].norm,
        after_first=look.after_first or end,
        second_gradients=look.gradients[1] if plan.steps > 1 else {},
        end=end,
        n_steps=plan.steps,
        losses=_known([step.loss for step in steps]),
        changed_batch=steps[0].changed_batch,
        peak_state_bytes=look.peak_bytes,
        step_s=median(step.seconds for step in steps),
        events=events,
    )


class SaidOfStep(NamedTuple):
    """What one step says of itself."""

    loss: float | None
    norm: float | None
    seconds: float  # without those of the look
    changed_batch: bool  # it has left other numbers there


def take_step(trainer: Trainable, batch: Batch, look: Callable[[], None]) -> SaidOfStep:
    """One step; `look` is called when its gradients are there."""
    kept = [x.clone() for x in batch]
    started = time.perf_counter()
    if isinstance(trainer, InParts):
        loss: float | None = trainer.compute_gradients(batch)
    else:
        loss = trainer.step(batch)  # its gradients are still there, or are read from what the step did
    seconds = time.perf_counter() - started
    changed = any(not torch.equal(x, before) for x, before in zip(batch, kept, strict=True))
    with comm.settings(ledger=False):
        look()
    if not isinstance(trainer, InParts):
        return SaidOfStep(loss, getattr(trainer, "norm", None), seconds, changed)
    started = time.perf_counter()
    norm = trainer.clip()
    trainer.update()
    seconds += time.perf_counter() - started
    return SaidOfStep(loss, norm, seconds, changed)


def adamw(make: Make, plan: Plan, seed: int, *, stops: bool = True) -> AdamWTrace:
    """k steps, a checkpoint that a fresh trainer loads (if it `stops`), k more steps."""
    assert plan.adamw is not None
    k = plan.steps
    with born_with(seed, plan.dtype):
        trainer = make(plan.adamw)
        start = copied(trainer.parameters())
        losses = []
        for number in range(k):
            losses.append(trainer.step(plan_batch(plan, number)))
        half = state_of(trainer)
        can_save = hasattr(trainer, "save") and hasattr(trainer, "load")
        saves = can_save or not stops
        if plan.folder is None or not saves:
            return AdamWTrace(start=start, half=half, loaded=half, end=half, losses=_known(losses), saves=saves)
        if stops:
            trainer.save(plan.folder)  # type: ignore[attr-defined]
            torch.manual_seed(OTHER_SEEDS + seed)  # whoever does not load everything goes on with other numbers
            trainer = make(plan.adamw)
            trainer.load(plan.folder)  # type: ignore[attr-defined]
        loaded = state_of(trainer)
        for number in range(k, 2 * k):
            losses.append(trainer.step(plan_batch(plan, number)))
        end = state_of(trainer)
        return AdamWTrace(start=start, half=half, loaded=loaded, end=end, losses=_known(losses))


def _known(losses: Sequence[float | None]) -> tuple[float, ...]:
    """All of them, or none."""
    there = tuple(loss for loss in losses if loss is not None)
    return there if len(there) == len(losses) else ()


# How two climbs are compared.


def compare(
    alone: Trace, ranks: Sequence[Trace], rungs: Sequence[str], tolerance: float, replay: Replay
) -> dict[str, float]:
    """The largest deviation on each rung.

    Raises: NotEqual for the first rung that has a pair further apart than `tolerance`.
    """
    lacking = left_out(alone, ranks)
    deviations: dict[str, float] = {}
    below = ""  # a rung that is wrong and was not asked for: the mistake is further down than it seems
    for rung in RUNGS:
        if rung in lacking:
            continue
        pairs = list(_pairs_of(rung, alone, ranks))
        wrong = [pair for pair in pairs if not pair.holds(tolerance)]
        if rung not in rungs:
            if wrong and not below:
                below = rung
            continue
        if wrong:
            raise not_equal(pairs, wrong, alone, ranks, replay, tolerance, below=below, climbed=deviations)
        deviations[rung] = max((pair.distance() for pair in pairs), default=0.0)
    return deviations


def _pairs_of(rung: str, alone: Trace, ranks: Sequence[Trace]) -> Iterator[Pair]:
    """What must be equal on one rung: of every rank a tensor, and one device's."""
    one, one_adamw = alone
    traces = [trace for trace, _ in ranks]
    if rung == OUTPUT:
        for rank, trace in enumerate(traces):
            yield Pair(rung, "output", rank, trace.output, one.output)
    elif rung == GRADIENTS:
        gradients = [trace.gradients for trace in traces]
        yield from gradient_pairs(one, one.gradients, gradients, traces[0].is_read)
    elif rung == NORM:
        for rank, trace in enumerate(traces):
            yield Pair(rung, "norm", rank, numbers([trace.norm]), numbers([one.norm]))
    elif rung == PARAMETERS:
        # Ranks are compared with one device up to rounding, and with each other to the last bit.
        yield from state_pairs(rung, [trace.end for trace in traces], one.end, one)
    elif rung == LOSSES:
        for rank, trace in enumerate(traces):
            yield Pair(rung, "loss", rank, numbers(trace.losses), numbers(one.losses))
    elif one_adamw is not None:
        second = [trace for _, trace in ranks if trace is not None]
        if rung == ADAMW:
            steps = slice(0, one.n_steps)
            yield from state_pairs(rung, [trace.half for trace in second], one_adamw.half, one)
        else:
            steps = slice(one.n_steps, None)
            yield from state_pairs(rung, [trace.end for trace in second], one_adamw.end, one)
        want = one_adamw.losses
        for rank, found in enumerate(second):
            if found.losses and want:  # both sides tell them
                yield Pair(rung, "loss", rank, numbers(found.losses[steps]), numbers(want[steps]))
