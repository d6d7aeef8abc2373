"""What exactly must be equal on a rung: pairs of tensors, how far apart they are, and what of that is rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.verify.alike import SGD
from course_lib.verify.equality import deviation, largest
from course_lib.verify.trace import SgdTrace, Trace

RUNGS = ("output", "gradients", "gradient norm", "parameters", "loss curve", "AdamW", "save and load")
OUTPUT, GRADIENTS, NORM, PARAMETERS, LOSSES, ADAMW, SAVED = RUNGS
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
            return 0.0 if self.got is self.want else math.inf
        if self.got.shape != self.want.shape:
            return math.inf
        off = deviation(self.got, self.want, self.scale)
        if not self.rounded:
            return off
        size = max(largest(self.want), self.scale) or 1.0
        uncounted = self.rounded / size
        return 0.0 if off <= uncounted else off - uncounted  # a NaN stays one

    def holds(self, tolerance: float) -> bool:
        """Whether they are as near as they must be; not so if one holds a NaN."""
        most = 0.0 if self.exact else tolerance
        return self.distance() <= most


def left_out(alone: Trace, ranks: Sequence[Trace]) -> dict[str, str]:
    """The rungs that cannot be climbed with what the two sides give, and why."""
    lacks = {"the reference": _lacks(alone), "the parallel side": _lacks(ranks[0])}
    needs = {OUTPUT: "output(inputs)", NORM: "norm", LOSSES: "loss from step", SAVED: "save(folder) and load(folder)"}
    why = {}
    for rung, what in needs.items():
        sides = [side for side, rungs in lacks.items() if rung in rungs]
        if len(sides) == 1:
            why[rung] = f"{sides[0]} has no {what}"
        elif sides:
            why[rung] = f"neither side has {what}"
    return why


def _lacks(trace: Trace) -> set[str]:
    sgd, adamw = trace
    rungs = set()
    if sgd.output is None:
        rungs.add(OUTPUT)
    if math.isnan(sgd.norm):
        rungs.add(NORM)
    if not sgd.losses:
        rungs.add(LOSSES)
    if adamw is not None and not adamw.saves:
        rungs.add(SAVED)
    return rungs


def gradient_pairs(
    alone: SgdTrace, want: Mapping[str, Tensor], ranks: Sequence[Mapping[str, Tensor]], are_read: bool
) -> Iterator[Pair]:
    """The gradients of one step. A trained parameter without a gradient counts as one whose gradient is 0."""
    vanishing = vanishing_gradients(alone)
    trained = trainable(alone)
    sides_read = alone.is_read + are_read
    for rank, found in enumerate(ranks):
        for name in trained:
            weight = alone.start[name]
            zero = torch.zeros_like(weight)
            got, right = found.get(name, zero), want.get(name, zero)
            scale = vanishing.get(name, 0.0)
            yield Pair(GRADIENTS, name, rank, got, right, scale=scale, rounded=sides_read * reading_rounds(weight))
        for name in sorted(found.keys() - trained):
            if not are_read or found[name].any():  # what is read is there for all
                yield Pair(GRADIENTS, name, rank, found[name], None)


def reading_rounds(weight: Tensor) -> float:
    """What a gradient may be off by that is read from what SGD does to this weight."""
    if not weight.is_floating_point():
        return 0.0
    eps = torch.finfo(weight.dtype).eps
    return eps * largest(weight) / SGD.learning_rate


def state_pairs(
    rung: str, ranks: Sequence[Mapping[str, Tensor]], want: Mapping[str, Tensor], alone: SgdTrace
) -> Iterator[Pair]:
    """Parameters and buffers of each rank against one device's, then each rank's parameters against the first rank's.

    Frozen ones must not have changed by a bit, and no copy may differ by one from another.
    """
    vanishing = vanishing_gradients(alone)
    for rank, state in enumerate(ranks):
        extra = sorted(state.keys() - want.keys())
        for name in [*want, *extra]:
            got, scale = state.get(name), vanishing.get(name, 0.0)
            yield Pair(rung, name, rank, got, want.get(name), exact=name in alone.frozen, scale=scale)
    for rank, state in enumerate(ranks):
        for name in alone.parameter_names:
            yield Pair(rung, name, rank, state.get(name), ranks[0].get(name), exact=True, replica=True)


def vanishing_gradients(alone: SgdTrace) -> dict[str, float]:
    """Parameters whose gradient is 0 by mathematics, with the model's largest gradient, whose rounding they hold.

    A key's bias is one: it adds the same to all scores of a query, which the softmax does not see.
    """
    most = max(map(largest, alone.gradients.values()), default=0.0)
    vanishing = {}
    for name, gradient in alone.gradients.items():
        size = largest(gradient)
        if size == 0:
            continue  # nothing is rounded
        eps = torch.finfo(alone.narrow or gradient.dtype).eps
        is_rounding = size < _ROUNDINGS * eps * most
        is_reading = alone.is_read and size <= 2 * reading_rounds(alone.start[name])
        if is_rounding or is_reading:
            vanishing[name] = most
    return vanishing


def names_right(pairs: Sequence[Pair], wrong: Sequence[Pair], alone: SgdTrace) -> frozenset[str]:
    """What is equal on every rank, and tells something by it: rounding alone is equal whatever was done."""
    names = frozenset(pair.name for pair in pairs)
    names_wrong = {pair.name for pair in wrong}
    return names - names_wrong - vanishing_gradients(alone).keys()


def wrong_after_first(alone: SgdTrace, ranks: Sequence[SgdTrace], tolerance: float) -> list[tuple[int, str]]:
    """(rank, name) of every parameter and buffer that the first step left otherwise than on one device."""
    vanishing = vanishing_gradients(alone)
    wrong = []
    for rank, trace in enumerate(ranks):
        for name, want in alone.after_first.items():
            got, scale = trace.after_first.get(name), vanishing.get(name, 0.0)
            pair = Pair(PARAMETERS, name, rank, got, want, scale=scale)
            if not pair.holds(tolerance):
                wrong.append((rank, name))
    return wrong


def trainable(trace: SgdTrace) -> list[str]:
    """The parameters that are not frozen: what has a gradient on one device, or could have."""
    return [name for name in trace.parameter_names if name not in trace.frozen]


def numbers(values: Sequence[float]) -> Tensor:
    """A tensor that holds Python's floats without rounding."""
    return torch.tensor(values, dtype=torch.float64)
