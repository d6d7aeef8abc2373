"""The pairs of tensors that the ladder compares, rung by rung."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.verify.climb import SGD, AdamWTrace, SgdTrace, Trace
from course_lib.verify.equality import deviation, largest

RUNGS = ("output", "gradients", "gradient norm", "parameters", "loss curve", "AdamW", "save and load")
_ROUNDINGS = 10  # as many roundings of the model's largest gradient are nothing


class Pair(NamedTuple):
    """Two tensors that must be equal; None is one that does not exist."""

    rung: str
    name: str
    rank: int
    got: Tensor | None
    want: Tensor | None
    exact: bool = False  # to the last bit
    scale: float = 0.0  # what a deviation is relative to, where the numbers themselves are smaller
    replica: bool = False  # `want` is the first rank's copy, not one device's
    rounded: float = 0.0  # a difference that comes from how they were read, and does not count

    def distance(self) -> float:
        """The deviation; infinite if one is missing where the other is, or the shapes differ."""
        if self.got is None or self.want is None:
            return 0.0 if self.got is self.want else float("inf")
        if self.got.shape != self.want.shape:
            return float("inf")
        off = deviation(self.got, self.want, self.scale)
        if not self.rounded:
            return off
        uncounted = self.rounded / (max(largest(self.want), self.scale) or 1.0)
        return 0.0 if off <= uncounted else off - uncounted

    def holds(self, tolerance: float) -> bool:
        """Whether they are as near as they must be; not so if one holds a NaN."""
        return self.distance() <= (0.0 if self.exact else tolerance)


def all_pairs(alone: Trace, ranks: Sequence[Trace]) -> Iterator[Pair]:
    """Everything that there is, in the order of the rungs."""
    lacking = left_out(alone, ranks)
    yield from (pair for pair in _sgd_pairs(alone[0], [trace for trace, _ in ranks]) if pair.rung not in lacking)
    yield from (
        pair for pair in _adamw_pairs(alone, [trace for _, trace in ranks if trace]) if pair.rung not in lacking
    )


def left_out(alone: Trace, ranks: Sequence[Trace]) -> dict[str, str]:
    """The rungs that cannot be climbed with what the two sides give, and why."""
    sides = (("the reference", *alone), ("the parallel side", *ranks[0]))
    lacks = [
        (RUNGS[0], "output(inputs)", [who for who, sgd, _ in sides if sgd.output is None]),
        (RUNGS[2], "norm", [who for who, sgd, _ in sides if math.isnan(sgd.norm)]),
        (RUNGS[4], "loss from step", [who for who, sgd, _ in sides if not sgd.losses]),
        (RUNGS[6], "save(folder) and load(folder)", [who for who, _, a in sides if a and not a.saves]),
    ]
    return {
        rung: f"{who[0]} has no {what}" if len(who) == 1 else f"neither side has {what}"
        for rung, what, who in lacks
        if who
    }


def _sgd_pairs(alone: SgdTrace, ranks: Sequence[SgdTrace]) -> Iterator[Pair]:
    """What SGD left behind, rung by rung."""
    for rank, trace in enumerate(ranks):
        yield Pair(RUNGS[0], "output", rank, trace.output, alone.output)
    vanishing = vanishing_gradients(alone)
    yield from gradient_pairs(alone, alone.gradients, [trace.gradients for trace in ranks], ranks[0].is_read)
    for rank, trace in enumerate(ranks):
        yield Pair(RUNGS[2], "norm", rank, _numbers([trace.norm]), _numbers([alone.norm]))
    yield from _state_pairs(RUNGS[3], [trace.end for trace in ranks], alone.end, alone, vanishing)
    for rank, trace in enumerate(ranks):
        yield Pair(RUNGS[4], "loss", rank, _numbers(trace.losses), _numbers(alone.losses))


def gradient_pairs(
    alone: SgdTrace, want: Mapping[str, Tensor], ranks: Sequence[Mapping[str, Tensor]], are_read: bool
) -> Iterator[Pair]:
    """The gradients of one step. A trained parameter without a gradient counts as one whose gradient is 0."""
    vanishing = vanishing_gradients(alone)
    for rank, found in enumerate(ranks):
        for name in trainable(alone):
            zero = torch.zeros_like(alone.start[name])
            yield Pair(
                RUNGS[1],
                name,
                rank,
                found.get(name, zero),
                want.get(name, zero),
                scale=vanishing.get(name, 0.0),
                rounded=(alone.is_read + are_read) * reading_rounds(alone.start[name]),
            )
        for name in sorted(found.keys() - trainable(alone)):
            if not are_read or found[name].any():  # what is read is there for all
                yield Pair(RUNGS[1], name, rank, found[name], None)


def reading_rounds(weight: Tensor) -> float:
    """What a gradient may be off by that is read from what SGD does to this weight."""
    eps = torch.finfo(weight.dtype).eps if weight.is_floating_point() else 0.0
    return eps * largest(weight) / SGD.learning_rate


def _adamw_pairs(alone: Trace, traces: Sequence[AdamWTrace]) -> Iterator[Pair]:
    """What AdamW left behind: before the checkpoint, and after it."""
    first, want = alone
    if want is None:
        return
    k, vanishing = first.n_steps, vanishing_gradients(first)
    for rung, losses in ((RUNGS[5], slice(0, k)), (RUNGS[6], slice(k, None))):
        half = rung == RUNGS[5]
        ends = [trace.half if half else trace.end for trace in traces]
        yield from _state_pairs(rung, ends, want.half if half else want.end, first, vanishing)
        for rank, trace in enumerate(traces):
            if trace.losses and want.losses:
                yield Pair(rung, "loss", rank, _numbers(trace.losses[losses]), _numbers(want.losses[losses]))


def _state_pairs(
    rung: str,
    ranks: Sequence[Mapping[str, Tensor]],
    want: Mapping[str, Tensor],
    alone: SgdTrace,
    scales: Mapping[str, float],
) -> Iterator[Pair]:
    """Parameters and buffers of each rank against one device's, then each rank's parameters against the first rank's.

    Frozen ones must not have changed by a bit, and no copy may differ by one from another.
    """
    for rank, state in enumerate(ranks):
        for name in [*want, *sorted(state.keys() - want.keys())]:
            got, scale = state.get(name), scales.get(name, 0.0)
            yield Pair(rung, name, rank, got, want.get(name), exact=name in alone.frozen, scale=scale)
    for rank, state in enumerate(ranks):
        for name in alone.parameter_names:
            yield Pair(rung, name, rank, state.get(name), ranks[0].get(name), exact=True, replica=True)


def vanishing_gradients(alone: SgdTrace) -> dict[str, float]:
    """Parameters whose gradient is 0 by mathematics, with the model's largest gradient, whose rounding they hold.

    A key's bias is one: it adds the same to all scores of a query, which the softmax does not see.
    """
    most = max(map(largest, alone.gradients.values()), default=0.0)
    return {
        name: most
        for name, gradient in alone.gradients.items()
        if 0 < largest(gradient) < _ROUNDINGS * torch.finfo(alone.narrow or gradient.dtype).eps * most
        or (alone.is_read and 0 < largest(gradient) <= 2 * reading_rounds(alone.start[name]))
    }


def names_right(pairs: Sequence[Pair], wrong: Sequence[Pair], alone: SgdTrace) -> frozenset[str]:
    """What is equal on every rank, and tells something by it: rounding alone is equal whatever was done."""
    return frozenset(pair.name for pair in pairs) - {pair.name for pair in wrong} - vanishing_gradients(alone).keys()


def wrong_after_first(alone: SgdTrace, ranks: Sequence[SgdTrace], tolerance: float) -> list[tuple[int, str]]:
    """(rank, name) of every parameter and buffer that the first step left otherwise than on one device."""
    vanishing = vanishing_gradients(alone)
    pairs = [
        (rank, Pair(RUNGS[3], name, rank, trace.after_first.get(name), want, scale=vanishing.get(name, 0.0)))
        for rank, trace in enumerate(ranks)
        for name, want in alone.after_first.items()
    ]
    return [(rank, pair.name) for rank, pair in pairs if not pair.holds(tolerance)]


def trainable(trace: SgdTrace) -> list[str]:
    """The parameters that are not frozen: what has a gradient on one device, or could have."""
    return [name for name in trace.parameter_names if name not in trace.frozen]


def _numbers(values: Sequence[float]) -> Tensor:
    """A tensor that holds Python's floats without rounding."""
    return torch.tensor(values, dtype=torch.float64)
