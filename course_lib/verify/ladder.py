"""The verification ladder: the same training on one device and on ranks, compared rung by rung.

What a rung is, how both sides climb and how they are compared stands in `climb`. Here is what is around it: what may be
asked, how far apart is equal, and the report.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from course_lib.comm.ledger import Ledger
from course_lib.errors import four_parts
from course_lib.ranks import run_ranks
from course_lib.training.batches import Batch, Batches
from course_lib.verify import pairs
from course_lib.verify.alike import ADAMW, Plan
from course_lib.verify.bad_input import check_ranks, check_reference
from course_lib.verify.climb import adamw, climb_alone, climb_rank, compare
from course_lib.verify.clipping import norm_that_clips, norms_without_clipping
from course_lib.verify.diagnosis import BYTES, compare_bytes
from course_lib.verify.equality import TOLERANCES, name_of
from course_lib.verify.matching import matched
from course_lib.verify.pairs import RUNGS
from course_lib.verify.replay import Replay
from course_lib.verify.trace import SgdTrace, Trace
from course_lib.verify.trainable import Make

STEPS = 3  # of SGD, of AdamW, and of what goes on from its checkpoint


@dataclass(frozen=True, kw_only=True)
class Report:
    """How far the ranks were from one device: on each rung the largest deviation.

    A deviation is the largest difference between two tensors over the largest number in the one-device tensor.
    """

    world_size: int
    dtype: torch.dtype
    narrow: torch.dtype | None  # a lower precision in which the model computes inside
    tolerance: float
    deviations: dict[str, float]  # by rung
    left_out: dict[str, str]  # a rung that was asked for, and why it cannot be climbed
    notes: tuple[str, ...]  # what else is to be said, a sentence each
    losses: tuple[float, ...]  # of SGD, over the whole batch
    adamw_losses: tuple[float, ...]
    peak_state_bytes: tuple[int, ...]  # by rank: weights and gradients under SGD
    step_s: float  # the slowest rank's median SGD step
    alone_step_s: float
    ledger: Ledger  # of wrapping and the SGD steps; nothing that the ladder itself sent

    @property
    def max_deviation(self) -> float:
        """The largest deviation of all rungs."""
        return max(self.deviations.values())

    def __str__(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        precision = name_of(self.dtype)
        if self.narrow:
            precision += f" ({name_of(self.narrow)} inside)"
        lines = [f"{ranks} against one device, {precision}, tolerance {self.tolerance:g}"]
        for rung, found in self.deviations.items():
            lines.append(f"  {rung:<14}{found:8.1e}")
        for rung, why in self.left_out.items():
            lines.append(f"  {rung:<14}left out: {why}")
        return "\n".join([*lines, *self.notes])


def assert_parallel_equals(
    reference: Make,
    parallel: Make,
    batches: Batches | Callable[[int], Batch],
    *,
    world_size: int,
    steps: int = STEPS,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
    cost: Sequence[int] | None = None,
    rungs: Sequence[str] = RUNGS,
    timeout: float = 60.0,
) -> Report:
    """Train by `reference` on one device and by `parallel` on `world_size` ranks; return how far apart they are.

    Both make a trainer, model and all, from the configuration that the ladder gives them. They are called under
    `dtype` as torch's default; rank r is seeded with r, the one device with 0. Besides one device, ranks are compared
    with each other: their copies of a parameter are equal bit by bit. `cost` are the bytes that each rank is to send
    for wrapping and the SGD steps, by a formula of yours; the buffers of the first forward are sent when the ladder
    looks at the output, which is not in it.

    `steps` are the steps under SGD, under AdamW, and after its checkpoint. What goes wrong in a later one than that is
    not seen: raise it for what begins late, such as a schedule's end. Without `tolerance` it is that of `dtype`, or of
    a lower precision in which the model computes inside, as norms and softmax of `transformers` do in float32; then a
    smaller error than that is not seen either.

    Raises: NotEqual on the first rung that fails, and whatever `run_ranks` raises.
    """
    check(dtype, tolerance, rungs)
    batch_of = batches.batch if isinstance(batches, Batches) else batches
    plan = Plan(batch_of=batch_of, steps=steps, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        plan, alone = climb_first(reference, plan, rungs, folder, tolerance)
        ranks: list[Trace] = run_ranks(climb_rank, world_size, parallel, plan, timeout=timeout)
    report = judge(alone, ranks, Replay(reference, plan), rungs, tolerance)
    if cost is not None:
        compare_bytes(report.ledger, cost, ranks[0][0].n_microbatches or 1)
        report.deviations[BYTES] = 0.0
    return report


def climb_first(
    reference: Make, plan: Plan, rungs: Sequence[str], folder: str, tolerance: float | None = None
) -> tuple[Plan, Trace]:
    """One device, as far as the rungs ask, and the plan for the ranks, who write their checkpoint to `folder`."""
    alone = climb_alone(reference, plan)
    within = _tolerance_of(alone.narrow or plan.dtype, tolerance)
    check_reference(reference, plan, alone, within)
    if pairs.ADAMW not in rungs and pairs.SAVED not in rungs:
        return plan, (alone, None)
    # A limit that no gradient reaches would prove nothing of clipping.
    most = norm_that_clips(norms_without_clipping(reference, plan))
    plan = replace(plan, adamw=replace(ADAMW, max_norm=most))
    if pairs.SAVED in rungs:
        plan = replace(plan, folder=folder)
    return plan, (alone, adamw(reference, plan, seed=0, stops=False))


def judge(
    alone: Trace, ranks: Sequence[Trace], replay: Replay, rungs: Sequence[str], tolerance: float | None = None
) -> Report:
    """The report of what was climbed.

    Raises: NotEqual on the first rung that fails.
    """
    dtype = replay.plan.dtype
    within = _tolerance_of(alone[0].narrow or dtype, tolerance)
    alone, ranks, notes = matched(alone, ranks)
    one, traces = alone[0], [trace for trace, _ in ranks]
    check_ranks(one, ranks, within)
    deviations = compare(alone, ranks, rungs, within, replay)
    lacking = pairs.left_out(alone, ranks)
    second = ranks[0][1]
    return Report(
        world_size=len(ranks),
        dtype=dtype,
        narrow=one.narrow,
        tolerance=within,
        deviations=deviations,
        left_out={rung: why for rung, why in lacking.items() if rung in rungs},
        notes=(*notes, *_reading(one, traces[0])),
        losses=traces[0].losses,
        adamw_losses=second.losses if second else (),
        peak_state_bytes=tuple(trace.peak_state_bytes for trace in traces),
        step_s=max(trace.step_s for trace in traces),
        alone_step_s=one.step_s,
        ledger=Ledger([event for trace in traces for event in trace.events], len(ranks)),
    )


def _reading(alone: SgdTrace, first: SgdTrace) -> Iterator[str]:
    """Whose gradients were read from a step, and how exactly that can be."""
    who = []
    if alone.is_read:
        who.append("the reference")
    if first.is_read:
        who.append("the parallel side")
    if who:
        most = max(pairs.reading_rounds(alone.start[name]) for name in alone.parameter_names)
        how = f"which rounds them by up to {most:.1g}; this does not count"
        yield f"gradients of {' and '.join(who)} were read from one step of SGD, {how}"


def check(dtype: torch.dtype, tolerance: float | None, rungs: Sequence[str]) -> None:
    """Refuse what cannot be compared."""
    unknown = [rung for rung in rungs if rung not in RUNGS]
    if unknown or not rungs:
        values, rule = f"rungs={tuple(rungs)}", "rungs are known by name, at least one"
        way_out = f"choose from {', '.join(RUNGS)}"
        raise ValueError(four_parts("assert_parallel_equals", values, rule, way_out))
    _tolerance_of(dtype, tolerance)


def _tolerance_of(dtype: torch.dtype, given: float | None) -> float:
    """How far apart runs in this dtype may be, if it is not given."""
    if given is not None:
        return given
    if dtype not in TOLERANCES:
        values, rule = f"dtype={name_of(dtype)}", "only float64 and float32 have a tolerance that holds for every model"
        raise ValueError(four_parts("assert_parallel_equals", values, rule, "give tolerance="))
    return TOLERANCES[dtype]
