"""From wrong gradients on ranks to what they reveal: a ratio, a share that was never averaged, a wrong parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from course_lib.checks.kit.models import Tensors
from course_lib.verify.causes import OF_GRADIENTS, Causes, because
from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.ratios import exactly

Guess = tuple[Sequence[Tensors], str]  # by rank what a likely mistake leaves, and the mistake in words


def all_same(got: Sequence[Tensors], want: Sequence[Tensors]) -> bool:
    """Whether on every rank every tensor of `want` is there and right."""
    pairs = zip(got, want, strict=True)
    return all(close(mine.get(name), right) for mine, rights in pairs for name, right in rights.items())


def why_wrong(
    got: Sequence[Tensors],
    want: Tensors,
    *,
    own: Sequence[Tensors] = (),
    guesses: Sequence[Guess] = (),
    causes: Causes = (),
) -> str | None:
    """None if every rank has the gradients `want`, else one line: what all ranks did, or the first wrong tensor.

    `own` are the gradients of each rank's share alone.
    """
    if all_same(got, [want] * len(got)):
        return None
    formal = _wrong_form(got, want)
    if formal:
        return formal
    alone: list[Guess] = [(own, "every rank still has the gradient of its own share: nothing was averaged")]
    for expected, text in [*guesses, *(alone if own else [])]:
        if all_same(got, expected):
            return text
    return _overall_ratio(got, want, causes) or _first_wrong(got, want, own, causes)


def causes_of(world_size: int, micro_batches: int = 1) -> Causes:
    """What usually gives a ratio of gradients, as a question."""
    found = [(cause.ratio(world_size, micro_batches), cause.question) for cause in OF_GRADIENTS]
    return [(ratio, question) for ratio, question in found if ratio != 1]


def _wrong_form(got: Sequence[Tensors], want: Tensors) -> str | None:
    for rank, mine in enumerate(got):
        for name, right in want.items():
            found = mine.get(name)
            if found is None and right is not None:
                return f"{name} has no gradient on rank {rank}"
            if found is not None and right is None:
                return f"{name} is frozen, but has a gradient on rank {rank}"
            if found is not None and right is not None and found.shape != right.shape:
                return f"{name} on rank {rank} has shape {tuple(found.shape)}, expected {tuple(right.shape)}"
    return None


def _flat(tensors: Tensors, names: Mapping[str, object]) -> Tensor:
    return torch.cat([tensor.flatten() for name in names if (tensor := tensors.get(name)) is not None])


def _overall_ratio(got: Sequence[Tensors], want: Tensors, causes: Causes) -> str | None:
    found = {name: None for name, right in want.items() if right is not None}
    ratio = scale_of(torch.cat([_flat(mine, found) for mine in got]), torch.cat([_flat(want, found)] * len(got)))
    if ratio is None:
        return None
    return f"your gradient is {exactly(ratio)} the reference{because(ratio, causes)}"


def _first_wrong(got: Sequence[Tensors], want: Tensors, own: Sequence[Tensors], causes: Causes) -> str:
    for rank, mine in enumerate(got):
        for name, right in want.items():
            found = mine.get(name)
            if found is None or right is None or close(found, right):
                continue
            place = f"{name} on rank {rank}"
            if own and close(found, own[rank].get(name)):
                return f"{place} is still the gradient of its own share: it was not averaged"
            ratio = scale_of(found, right)
            if ratio is not None:
                return f"{place} is {exactly(ratio)} the reference{because(ratio, causes)}"
            alike = all(close(other.get(name), found) for other in got)
            agree = "all ranks hold the same" if alike else "the ranks hold different ones"
            return f"{place} {no_multiple(found, right)}, and {agree}"
    raise AssertionError("_first_wrong: called with right gradients")
