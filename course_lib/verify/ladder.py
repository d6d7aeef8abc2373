"""The verification ladder: the same training on one device and on ranks, compared rung by rung.

Rungs stand in the order in which an error shows. Plain SGD comes first, since Adam divides errors of scale away; then
AdamW with weight decay and clipping, and a checkpoint, since plain SGD has no state that could be wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from course_lib.comm.ledger import Ledger
from course_lib.errors import four_parts
from course_lib.ranks import run_ranks
from course_lib.training.batches import Batch, Batches
from course_lib.verify.climb import (
    ADAMW,
    AdamWTrace,
    Make,
    Plan,
    SgdTrace,
    Trace,
    adamw,
    climb_alone,
    climb_rank,
)
from course_lib.verify.diagnosis import Pair, explain
from course_lib.verify.equality import TOLERANCES, deviation, largest, name_of

RUNGS = ("output", "gradients", "gradient norm", "parameters", "loss curve", "AdamW", "save and load")
_ROUNDINGS = 10  # as many roundings of the model's largest gradient are nothing
_CLIPPED = 0.5  # of the first gradient's norm is what clipping leaves, so that it does act


@dataclass(frozen=True, kw_only=True)
class Report:
    """How far the ranks were from one device: on each rung the largest deviation.

    A deviation is the largest difference between two tensors over the largest number in the one-device tensor.
    """

    world_size: int
    dtype: torch.dtype
    tolerance: float
    deviations: dict[str, float]  # by rung
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
        head = f"{self.world_size} ranks against one device, {name_of(self.dtype)}, tolerance {self.tolerance:g}"
        return "\n".join([head, *(f"  {rung:<14}{found:8.1e}" for rung, found in self.deviations.items())])


def assert_parallel_equals(
    reference: Make,
    parallel: Make,
    batches: Batches | Callable[[int], Batch],
    *,
    world_size: int,
    steps: int = 3,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
    rungs: Sequence[str] = RUNGS,
    timeout: float = 60.0,
) -> Report:
    """Train by `reference` on one device and by `parallel` on `world_size` ranks; return how far apart they are.

    Both make a trainer, model and all, from the configuration that the ladder gives them. They are called under
    `dtype` as torch's default; rank r is seeded with r, the one device with 0.

    Raises: NotEqual on the first rung that fails, and whatever `run_ranks` raises.
    """
    check(dtype, tolerance, rungs)
    within = TOLERANCES[dtype] if tolerance is None else tolerance
    batch_of = batches.batch if isinstance(batches, Batches) else batches
    plan = Plan(batch_of=batch_of, steps=steps, dtype=dtype)
    alone: Trace = (climb_alone(reference, plan), None)
    with tempfile.TemporaryDirectory() if RUNGS[6] in rungs else nullcontext() as folder:
        if RUNGS[5] in rungs or folder:
            max_norm = _CLIPPED * alone[0].norm or None
            plan = replace(plan, adamw=replace(ADAMW, max_norm=max_norm), folder=folder)
            alone = (alone[0], adamw(reference, plan, seed=0, stops=False))
        ranks: list[Trace] = run_ranks(climb_rank, world_size, parallel, plan, timeout=timeout)
    deviations = compare(alone, ranks, rungs, within)
    first = [trace for trace, _ in ranks]
    return Report(
        world_size=world_size,
        dtype=dtype,
        tolerance=within,
        deviations=deviations,
        losses=first[0].losses,
        adamw_losses=ranks[0][1].losses if ranks[0][1] else (),
        peak_state_bytes=tuple(trace.peak_state_bytes for trace in first),
        step_s=max(trace.step_s for trace in first),
        alone_step_s=alone[0].step_s,
        ledger=Ledger([event for trace in first for event in trace.events], world_size),
    )


def check(dtype: torch.dtype, tolerance: float | None, rungs: Sequence[str]) -> None:
    """Refuse what cannot be compared."""
    unknown = [rung for rung in rungs if rung not in RUNGS]
    if unknown or not rungs:
        values, way_out = f"rungs={tuple(rungs)}", f"choose from {', '.join(RUNGS)}"
        raise ValueError(four_parts("assert_parallel_equals", values, "rungs are known by name, at least one", way_out))
    if dtype not in TOLERANCES and tolerance is None:
        values, rule = f"dtype={name_of(dtype)}", "only float64 and float32 have a tolerance that holds for every model"
        raise ValueError(four_parts("assert_parallel_equals", values, rule, "give tolerance="))


def compare(alone: Trace, ranks: Sequence[Trace], rungs: Sequence[str], tolerance: float) -> dict[str, float]:
    """The largest deviation on each rung.

    Raises: NotEqual for the first pair that is further apart than `tolerance`.
    """
    deviations = {rung: 0.0 for rung in RUNGS if rung in rungs}
    sgd_traces = [trace for trace, _ in ranks]
    pairs = chain(_sgd_pairs(alone[0], sgd_traces), _adamw_pairs(alone, [trace for _, trace in ranks]))
    for pair in pairs:
        if pair.rung not in rungs:
            continue
        found = _distance(pair)
        if not found <= (0.0 if pair.exact else tolerance):  # so that a NaN is refused too
            raise explain(pair, alone[0], sgd_traces, tolerance)
        deviations[pair.rung] = max(deviations[pair.rung], found)
    return deviations


def _distance(pair: Pair) -> float:
    """The deviation of a pair; infinite if one is missing where the other is, or the shapes differ."""
    if pair.got is None or pair.want is None:
        return 0.0 if pair.got is pair.want else float("inf")
    return deviation(pair.got, pair.want, pair.scale) if pair.got.shape == pair.want.shape else float("inf")


def _sgd_pairs(alone: SgdTrace, ranks: Sequence[SgdTrace]) -> Iterator[Pair]:
    """What SGD left behind, rung by rung. A trained parameter without a gradient counts as one whose gradient is 0."""
    for rank, trace in enumerate(ranks):
        yield Pair("output", "output", rank, trace.output, alone.output)
    vanishing = _vanishing_gradients(alone)
    for rank, trace in enumerate(ranks):
        for name in _trainable(alone):
            zero = torch.zeros_like(alone.start[name])
            got, want = (one.gradients.get(name, zero) for one in (trace, alone))
            yield Pair("gradients", name, rank, got, want, scale=vanishing.get(name, 0.0))
        for name in sorted(trace.gradients.keys() - _trainable(alone)):
            yield Pair("gradients", name, rank, trace.gradients[name], None)
    for rank, trace in enumerate(ranks):
        yield Pair("gradient norm", "norm", rank, numbers([trace.norm]), numbers([alone.norm]))
    yield from _state_pairs("parameters", [trace.end for trace in ranks], alone.end, alone.frozen, vanishing)
    for rank, trace in enumerate(ranks):
        yield Pair("loss curve", "loss", rank, numbers(trace.losses), numbers(alone.losses))


def _adamw_pairs(alone: Trace, ranks: Sequence[AdamWTrace | None]) -> Iterator[Pair]:
    """What AdamW left behind: before the checkpoint, and after it."""
    first, want = alone
    traces = [trace for trace in ranks if trace]
    if want is None:
        return
    k, vanishing = len(first.losses), _vanishing_gradients(first)
    for rung, losses in ((RUNGS[5], slice(0, k)), (RUNGS[6], slice(k, None))):
        half = rung == RUNGS[5]
        ends = [trace.half if half else trace.end for trace in traces]
        yield from _state_pairs(rung, ends, want.half if half else want.end, first.frozen, vanishing)
        for rank, trace in enumerate(traces):
            yield Pair(rung, "loss", rank, numbers(trace.losses[losses]), numbers(want.losses[losses]))


def _state_pairs(
    rung: str,
    ranks: Sequence[dict[str, Tensor]],
    want: dict[str, Tensor],
    frozen: Sequence[str],
    scales: Mapping[str, float],
) -> Iterator[Pair]:
    """Parameters and buffers of each rank against one device's; frozen ones must not have changed by a bit."""
    for rank, state in enumerate(ranks):
        for name in [*want, *sorted(state.keys() - want.keys())]:
            got, scale = state.get(name), scales.get(name, 0.0)
            yield Pair(rung, name, rank, got, want.get(name), exact=name in frozen, scale=scale)


def _vanishing_gradients(alone: SgdTrace) -> dict[str, float]:
    """Parameters whose gradient is 0 by mathematics, with the model's largest gradient, whose rounding they hold.

    A key's bias is one: it adds the same to all scores of a query, which the softmax does not see.
    """
    most = max(map(largest, alone.gradients.values()), default=0.0)
    return {
        name: most
        for name, gradient in alone.gradients.items()
        if 0 < largest(gradient) < _ROUNDINGS * torch.finfo(gradient.dtype).eps * most
    }


def _trainable(trace: SgdTrace) -> list[str]:
    """The parameters that are not frozen: what has a gradient on one device, or could have."""
    return [name for name in trace.parameter_names if name not in trace.frozen]


def numbers(values: Sequence[float]) -> Tensor:
    """A tensor that holds Python's floats without rounding."""
    return torch.tensor(values, dtype=torch.float64)
