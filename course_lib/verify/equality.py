"""The equality check: the same training on one device and on ranks, compared rung by rung.

Rungs, in the order in which an error shows: the first loss, every gradient of the first step, every parameter after
the last step, the loss curve. The optimizer is plain SGD, since Adam divides errors of scale away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.ranks import run_ranks
from course_lib.verify.trace import Experiment, Technique, Trace, train_alone, train_rank

RUNGS = ("first loss", "gradients", "parameters", "loss curve")


@dataclass(frozen=True, kw_only=True)
class Report:
    """How far the ranks were from one device: on each rung the largest deviation.

    A deviation is the largest difference between two tensors over the largest number in the one-device tensor.
    """

    world_size: int
    deviations: dict[str, float]  # by rung
    losses: tuple[float, ...]  # of the ranks, over the whole batch
    peak_state_bytes: tuple[int, ...]  # by rank
    step_s: float  # the slowest rank's median
    alone_step_s: float

    @property
    def max_deviation(self) -> float:
        """The largest deviation of all rungs."""
        return max(self.deviations.values())


class Pair(NamedTuple):
    """Two tensors that must be equal; `rank` is None for what belongs to all ranks."""

    rung: str
    name: str
    rank: int | None
    got: Tensor
    want: Tensor


class NotEqual(AssertionError):
    """The ranks did not compute what one device computes; says on which rung first, where, and by which ratio."""

    def __init__(self, message: str, *, rung: str, name: str, rank: int | None, ratio: float | None) -> None:
        super().__init__(message)
        self.rung, self.name, self.rank, self.ratio = rung, name, rank, ratio


def assert_parallel_equals(
    experiment: Experiment, technique: Technique, *, world_size: int, tolerance: float = 1e-5, timeout: float = 60.0
) -> Report:
    """Train on one device and on `world_size` ranks, and return how far apart they are.

    Raises: NotEqual if a deviation exceeds `tolerance`, and whatever `run_ranks` raises.
    """
    alone = train_alone(experiment)
    ranks: list[Trace] = run_ranks(train_rank, world_size, experiment, technique, timeout=timeout)
    sizes = [len(part) for part in torch.arange(experiment.batches.batch_size).tensor_split(world_size)]
    losses = whole_batch_losses(ranks, sizes)
    deviations = dict.fromkeys(RUNGS, 0.0)
    for pair in pairs(alone, ranks, losses):
        found = deviation(pair.got, pair.want)
        if not found <= tolerance:  # so that a NaN is refused too
            raise explain(pair, world_size=world_size, tolerance=tolerance)
        deviations[pair.rung] = max(deviations[pair.rung], found)
    return Report(
        world_size=world_size,
        deviations=deviations,
        losses=tuple(losses),
        peak_state_bytes=tuple(trace.peak_state_bytes for trace in ranks),
        step_s=max(trace.step_s for trace in ranks),
        alone_step_s=alone.step_s,
    )


def whole_batch_losses(ranks: Sequence[Trace], sizes: Sequence[int]) -> list[float]:
    """Each step's mean loss over the whole batch, from the means over the ranks' shards of `sizes` sequences."""
    columns = zip(*(trace.losses for trace in ranks), strict=True)
    return [sum(size * loss for size, loss in zip(sizes, column, strict=True)) / sum(sizes) for column in columns]


def pairs(alone: Trace, ranks: Sequence[Trace], losses: Sequence[float]) -> Iterator[Pair]:
    """Everything that is compared, in the order of the rungs. A gradient that does not exist counts as zero."""
    yield Pair("first loss", "loss", None, numbers(losses[:1]), numbers(alone.losses[:1]))
    for rank, trace in enumerate(ranks):
        for name, parameter in alone.parameters.items():
            zero = torch.zeros_like(parameter)
            ours, theirs = (one.gradients.get(name, zero) for one in (trace, alone))
            yield Pair("gradients", name, rank, ours, theirs)
    for rank, trace in enumerate(ranks):
        for name, parameter in alone.parameters.items():
            yield Pair("parameters", name, rank, trace.parameters[name], parameter)
    yield Pair("loss curve", "loss", None, numbers(losses), numbers(alone.losses))


def numbers(values: Sequence[float]) -> Tensor:
    """A tensor that holds Python's floats without rounding."""
    return torch.tensor(values, dtype=torch.float64)


def deviation(got: Tensor, want: Tensor) -> float:
    """Largest difference, relative to the largest number in `want`; absolute if that is 0."""
    largest = want.abs().max().item()
    return (got - want).abs().max().item() / (largest or 1.0)


def ratio_of(got: Tensor, want: Tensor) -> float | None:
    """The number r with got = r want, None if there is none."""
    got, want = got.double().flatten(), want.double().flatten()
    if not want.any():
        return None
    ratio = (got @ want / (want @ want)).item()
    return ratio if deviation(got, ratio * want) < 1e-3 * max(1.0, 1 / (abs(ratio) or 1.0)) else None


def explain(pair: Pair, *, world_size: int, tolerance: float) -> NotEqual:
    """The error for the first pair that is not equal."""
    ratio = ratio_of(pair.got, pair.want)
    where = pair.rung if pair.rank is None else f"{pair.rung}, {pair.name} on rank {pair.rank}"
    how = "no multiple of one device's" if ratio is None else f"{in_words(ratio)} x one device's"
    if ratio is not None and abs(ratio - 1) < 1e-2:
        how = "near one device's, not equal"
    message = four_parts(
        "assert_parallel_equals",
        f"{where}: {how}, deviation {deviation(pair.got, pair.want):.2g}",
        f"{world_size} ranks on shards equal one device on the whole batch within {tolerance:g}",
        way_out(ratio, world_size, pair.rung),
    )
    return NotEqual(message, rung=pair.rung, name=pair.name, rank=pair.rank, ratio=ratio)


def in_words(ratio: float) -> str:
    """A ratio as one says it: 4.0, 1/4, 0.327.

    >>> in_words(4.0000001), in_words(0.25), in_words(0.327)
    ('4.0', '1/4', '0.327')
    """
    if 0 < ratio < 0.9 and abs(1 / ratio - round(1 / ratio)) < 1e-3:
        return f"1/{round(1 / ratio)}"
    return f"{ratio:.1f}" if abs(ratio - round(ratio)) < 1e-3 else f"{ratio:.3g}"


def way_out(ratio: float | None, world_size: int, rung: str) -> str:
    """What usually causes such a ratio."""
    if rung == "first loss":
        return "start all ranks from the same weights, and give each its own share of the batch"
    if ratio is not None and world_size > 1:
        for expected, cause in (
            (world_size, "divide the sum over the ranks by their number"),
            (1 / world_size, "the average was divided by the number of ranks once more"),
            (0.0, "nothing was written into it"),
        ):
            if abs(ratio - expected) < 1e-3:
                return cause
    if rung == "gradients":
        return "look at what reaches this gradient between backward and the optimizer's step; are the shards even?"
    return "the first step's gradients are right: look at the update, and at what a later step does differently"
