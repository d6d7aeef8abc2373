"""Gradients on ranks, of replicas or stages: what is wrong first, and what its ratio to the right one reveals."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from course_lib.verify.causes import Causes, because
from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.ratios import exactly

Place = tuple[int, str]  # rank, parameter
Gradients = Mapping[Place, Tensor | None]


def gradients_on(rank: int, part: nn.Module) -> dict[Place, Tensor | None]:
    """Copies of one rank's gradients; None where there is none."""
    return {(rank, name): None if p.grad is None else p.grad.clone() for name, p in part.named_parameters()}


def agree(got: Gradients, want: Gradients, tolerance: float | None = None) -> bool:
    """Whether every tensor of `want` is there and right."""
    return all(close(got.get(place), right, tolerance=tolerance) for place, right in want.items())


def malformed(got: Gradients, want: Gradients, nan: str) -> str | None:
    """What cannot be compared: a gradient that is missing, too much, of another shape or no number."""
    for (rank, name), right in want.items():
        found = got.get((rank, name))
        if found is None and right is not None:
            return f"{name} has no gradient on rank {rank}"
        if found is not None and right is None:
            return f"{name} is frozen, but has a gradient on rank {rank}"
        if found is not None and right is not None and found.shape != right.shape:
            return f"{name} on rank {rank} has shape {tuple(found.shape)}, expected {tuple(right.shape)}"
        if found is not None and bool(found.isnan().any()):
            return f"{name} on rank {rank} holds nan, not a number: {nan}"
        if found is not None and bool(found.isinf().any()):
            return f"{name} on rank {rank} holds inf: a division by zero?"
    return None


def differing(got: Gradients, want: Gradients, causes: Causes, own: Gradients) -> str:
    """Of gradients that are not right: whether nothing was averaged, one ratio for all, or the first wrong tensor.

    `own` are those of each rank's share alone; empty if an average is not what is asked for.
    """
    if own and agree(got, own):
        return "every rank still has the gradient of its own share: nothing was averaged"
    flat = [torch.cat([x.flatten() for place in want if (x := side[place]) is not None]) for side in (got, want)]
    if (ratio := scale_of(*flat)) is not None:
        return f"your gradient is {exactly(ratio)} the reference{because(ratio, causes)}"
    place = next(place for place, right in want.items() if not close(got[place], right))
    found, right = got[place], want[place]
    assert found is not None and right is not None  # else it is malformed
    text = f"{place[1]} on rank {place[0]}"
    if own and close(found, own[place]):
        return f"{text} is still the gradient of its own share: it was not averaged"
    if (ratio := scale_of(found, right)) is not None:
        return f"{text} is {exactly(ratio)} the reference{because(ratio, causes)}"
    return f"{text} {no_multiple(found, right)}{_on_the_others(got, want, place)}"


def _on_the_others(got: Gradients, want: Gradients, place: Place) -> str:
    """Of what the ranks must have alike, whether they hold the same."""
    ranks = [other for other in want if other[1] == place[1]]
    if len(ranks) < 2 or not all(close(want[other], want[place]) for other in ranks):
        return ""
    copies = [got.get(other) for other in ranks]
    alike = all(close(copy, got[place]) for copy in copies)
    if alike:
        return ", and all ranks hold the same"
    found = [copy for copy in copies if copy is not None]
    terms = len(found) == len(ranks) and close(torch.stack(found).sum(0), want[place])
    return f", and the ranks hold different ones{', terms that add up to it' * terms}"
