"""One policy, exactly: its schedule's instruction lists in time, with stages that are not alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from course_lib.costs.sweep.job import Job
from course_lib.errors import four_parts
from course_lib.schedules import Compute, Durations, Schedule, Slot, bubble_s, make_schedule, time_schedule
from course_lib.sim import axes
from course_lib.sim.constants import rates_for
from course_lib.sim.policies import EVERY_SCHEDULE, Policies
from course_lib.sim.rates import Rates
from course_lib.sim.shape import Shape, shape_of
from course_lib.sim.step import StepWork, after, slowdown, work


@dataclass(frozen=True, kw_only=True)
class ExactStep:
    """A step as its instruction lists run it. `slots` are of the micro-batches alone; the rest comes after them."""

    schedule: Schedule
    slots: list[Slot]
    layers: tuple[int, ...]  # of each rank
    along: tuple[str, ...]  # tp, cp and ep, those that the policy has
    messages_s: tuple[float, ...]  # of each rank and micro-batch, along these: a third of them forward
    pipeline_s: float
    bubble_s: float  # idle time of the busiest rank
    after_s: Mapping[str, float]  # by cause, what comes after the pipeline; what slows all of it down is under `fixed`

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.pipeline_s + sum(self.after_s.values())

    @cached_property
    def computed(self) -> list[list[Slot]]:
        """By rank, the slots in which it computes."""
        found: list[list[Slot]] = [[] for _ in self.layers]
        for slot in self.slots:
            if isinstance(slot.instruction, Compute):
                found[slot.rank].append(slot)
        return found


def exact_step(
    job: Job,
    policies: Policies,
    index: int = 0,
    *,
    layers: Sequence[int] | None = None,
) -> ExactStep:
    """Time one policy on the lists of `course_lib.schedules`: the embedding's rank is the first, the head's the last.

    `layers` says how many each rank has; without it the model is cut as evenly as it goes, fewest at the end.
    Messages take the link's time, and what a rank waits for them is in the pipeline's length.
    Cost: all instructions once, about 20 microseconds each.
    Raises: ValueError for layers that are not the model's, or numbers for which there is no such schedule.
    """
    model, rates = job.model, rates_for(job)
    p = policies.take([index]).pieces(1, np.float64)[0]
    shape = shape_of(model, job.adapters)
    ranks = int(_first(p.pp))
    cut = tuple(layers) if layers is not None else even_layers(model.n_layers, ranks)
    if len(cut) != ranks or sum(cut) != model.n_layers or min(cut) < 0:
        rule = f"{ranks} ranks share {model.n_layers} layers"
        raise ValueError(four_parts("exact_step", f"layers={cut}", rule, "give one number for each rank, their sum L"))
    one = work(shape, rates, p)
    name = EVERY_SCHEDULE[int(_first(p.schedule))]
    virtual = int(_first(p.stages_per_rank)) if name == "interleaved" else 1
    schedule = make_schedule(name, ranks, int(_first(p.n_microbatches)), stages_per_rank=virtual)
    message = float(_first(axes.transfer_s(shape, rates, p))) / 2
    slots = time_schedule(schedule, _durations(one, cut), message_s=message)
    pipeline = max(slot.end_s for slot in slots)
    along = tuple(axis for axis in ("tp", "cp", "ep") if _first(getattr(p, axis)) > 1)
    messages_s = sum(_first(one.layer[axis]) for axis in along)
    return ExactStep(
        schedule=schedule,
        slots=slots,
        layers=cut,
        along=along,
        messages_s=tuple(count * messages_s for count in cut),
        pipeline_s=pipeline,
        bubble_s=bubble_s(slots, ranks),
        after_s=_after(shape, rates, p, one, pipeline),
    )


def even_layers(n_layers: int, ranks: int) -> tuple[int, ...]:
    """As even as it goes; where L + 2 divides, embedding and head count as layers, else the last rank has fewest."""
    if n_layers % ranks and (n_layers + 2) % ranks == 0 and ranks > 1:
        each = (n_layers + 2) // ranks
        return (each - 1, *[each] * (ranks - 2), each - 1)
    each, more = divmod(n_layers, ranks)
    return tuple(each + (rank < more) for rank in range(ranks))


def _durations(one: StepWork, layers: Sequence[int]) -> list[Durations]:
    """Of each rank for one micro-batch; the last one has the head."""
    layer, ahead, weights = (float(_first(x)) for x in (one.layer_s, one.layer_forward, one.layer_weights))
    head, head_ahead, head_weights = (float(_first(x)) for x in (one.head_s, one.head_forward, one.head_weights))
    found = []
    for rank, count in enumerate(layers):
        heads = rank == len(layers) - 1
        forward_s, weight_s = count * ahead + heads * head_ahead, count * weights + heads * head_weights
        input_s = count * layer + heads * head - forward_s - weight_s
        found.append(Durations(forward_s=forward_s, backward_input_s=input_s, backward_weight_s=weight_s))
    return found


def _after(shape: Shape, rates: Rates, p: Policies, one: StepWork, pipeline_s: float) -> dict[str, float]:
    """What the closed form counts beside the pipeline, by cause."""
    mean = sum(one.causes(shape.layers / p.pp, 1 / p.pp).values())
    found = {cause: _first(seconds) for cause, seconds in after(shape, rates, p, mean).items()}
    fixed = _first(rates.step_s + p.n_microbatches * rates.microbatch_s)
    whole = pipeline_s + sum(found.values()) + fixed
    return {**found, "fixed": fixed + whole * (_first(slowdown(rates, p)) - 1)}


def _first(value: object) -> float:
    return float(np.asarray(value).reshape(-1)[0])
