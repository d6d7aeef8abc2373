"""From wrong gradients of a model that lies on several ranks to what they reveal: a ratio, or a likely mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import torch
from torch import Tensor, nn

from course_lib.checks.kit.tensors import Causes, because, exactly, no_multiple, ratio_of, same
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import sent_by_pair

Place = tuple[int, str]  # rank, parameter
Gradients = Mapping[Place, Tensor | None]
Sizes = Mapping[Place, float]  # of the terms that a gradient is the sum of
Guess = tuple[Gradients, str]  # what a likely mistake leaves, on the ranks that it shows on, and the mistake in words


def gradients_on(rank: int, stage: nn.Module) -> dict[Place, Tensor | None]:
    """Copies of one rank's gradients; None where there is none."""
    return {(rank, name): None if p.grad is None else p.grad.clone() for name, p in stage.named_parameters()}


def why_wrong(
    got: Gradients, want: Gradients, *, guesses: Sequence[Guess] = (), causes: Causes = (), sizes: Sizes | None = None
) -> str | None:
    """None if all gradients are right, else one line: a known mistake, one ratio for all, or the first wrong tensor."""
    terms = sizes or {}
    if _agree(got, want, terms):
        return None
    if missing := _without_numbers(got, want):
        return missing
    for expected, text in guesses:
        if _agree(got, expected, terms):
            return text
    return _overall_ratio(got, want, causes) or _first_wrong(got, want, causes, terms)


def _agree(got: Gradients, want: Gradients, terms: Sizes) -> bool:
    return all(same(got.get(place), right, terms=terms.get(place, 0.0)) for place, right in want.items())


def _without_numbers(got: Gradients, want: Gradients) -> str | None:
    for (rank, name), right in want.items():
        if right is not None and got.get((rank, name)) is None:
            return f"{name} has no gradient on rank {rank}"
    for (rank, name), found in got.items():
        if found is not None and bool(found.isnan().any()):
            question = "was a torch.empty(...) used before its numbers had come in? With irecv, that is after wait()"
            return f"{name} on rank {rank} holds nan, not a number: {question}"
    return None


def _overall_ratio(got: Gradients, want: Gradients, causes: Causes) -> str | None:
    flat = [torch.cat([x.flatten() for place in want if (x := side[place]) is not None]) for side in (got, want)]
    ratio = ratio_of(*flat) if flat[0].shape == flat[1].shape else None
    return None if ratio is None else f"your gradient is {exactly(ratio)} the reference{because(ratio, causes)}"


def _first_wrong(got: Gradients, want: Gradients, causes: Causes, terms: Sizes) -> str:
    for (rank, name), right in want.items():
        found = got[rank, name]
        if found is None or right is None or same(found, right, terms=terms.get((rank, name), 0.0)):
            continue
        ratio = ratio_of(found, right) if found.shape == right.shape else None
        if ratio is None:
            return f"{name} on rank {rank} {no_multiple(found, right)}"
        return f"{name} on rank {rank} is {exactly(ratio)} the reference{because(ratio, causes)}"
    raise AssertionError("_first_wrong: called with right gradients")


def wrong_loss(loss: float | str, want: float, *, rank: int) -> str | None:
    """None if the last rank returned the loss of all rows, else what it is; a text names what is no number."""
    if isinstance(loss, str):
        return f"right gradients, but rank {rank} returned {loss}, not the loss as a number: loss.item()"
    if not isfinite(loss):
        return f"right gradients, but the loss on rank {rank} is {loss}"
    if abs(loss - want) > 1e-5 * abs(want):
        return f"right gradients, but the loss on rank {rank} is {exactly(loss / want)} that of all rows"
    return None


def wrong_traffic(book: Ledger, want: Sequence[Sequence[tuple[int, int]]], advice: str) -> str | None:
    """None if every rank sent every other one `want[rank][other]`, messages and their bytes in all, else the first."""
    sent = sent_by_pair(book.events)
    for rank, row in enumerate(want):
        for other, target in enumerate(row):
            sends = [event.nbytes for event in sent.get((rank, other), ())]
            if target[0] and not sends:
                found = f"the ledger has no message from rank {rank} to rank {other}"
                return f"values right, but {found}: use comm.send and comm.recv, not torch.distributed's own calls"
            if (len(sends), sum(sends)) != target:
                found = f"rank {rank} sends rank {other} {_messages(len(sends), sum(sends))}"
                return f"values right, but {found}, target {_messages(*target)}: {advice}"
    return None


def _messages(number: int, nbytes: int) -> str:
    return f"{number} message{'s' * (number != 1)} of {nbytes} bytes in all" if number else "nothing"
