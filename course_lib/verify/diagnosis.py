"""What the ladder says when a rung fails: where, by which ratio, the likely cause, and the way out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.verify.causes import OF_GRADIENTS
from course_lib.verify.climb import SgdTrace
from course_lib.verify.equality import Signature, deviation, same, signature
from course_lib.verify.ratios import agrees

_REARRANGED = {
    "transposed": "the shard was cut, or put back, along the other dim: compare its layout with torch's (out, in)",
    "permuted": "put the shards together in rank order",
    "rounded": "something on the way has 16 bits: reduce in the gradient's own dtype",
}
_WAYS_OUT = {
    "output": "give each rank its own share of the batch, and put the shares together in rank order",
    "gradient norm": "the gradients are right: count each of them once, whatever is replicated, tied or sharded",
    "parameters": "the first step's gradients are right: look at the update, and at what a later step does differently",
    "loss curve": "the weights are right: report the mean over the targets of all ranks, not of one",
    "AdamW": "SGD is right: look at clipping (one norm, of averaged gradients), weight decay, the optimizer's state",
    "save and load": "training before the checkpoint is right: save and load the optimizer's state and the buffers too",
}


class Pair(NamedTuple):
    """Two tensors that must be equal; None is one that does not exist."""

    rung: str
    name: str
    rank: int
    got: Tensor | None
    want: Tensor | None
    exact: bool = False  # to the last bit
    scale: float = 0.0  # what a deviation is relative to, where the numbers themselves are smaller


class NotEqual(AssertionError):
    """The ranks did not compute what one device computes; says on which rung first, where, and by which ratio."""

    def __init__(self, message: str, *, rung: str, name: str, rank: int, ratio: float | None, kind: str) -> None:
        super().__init__(message)
        self.rung, self.name, self.rank, self.ratio, self.kind = rung, name, rank, ratio, kind


def explain(pair: Pair, alone: SgdTrace, ranks: Sequence[SgdTrace], tolerance: float) -> NotEqual:
    """The error for the first pair that is not equal."""
    found = _recognise(pair, len(ranks))
    rule = "to the last bit" if pair.exact else f"within {tolerance:g}"
    name = "" if pair.name == pair.rung else f", {pair.name}"
    message = four_parts(
        "assert_parallel_equals",
        f"{pair.rung}{name} on rank {pair.rank}: {found.words}{_by_how_much(pair)}",
        f"{len(ranks)} ranks together equal one device on the same batch {rule}",
        way_out(pair, found, alone, ranks),
    )
    return NotEqual(message, rung=pair.rung, name=pair.name, rank=pair.rank, ratio=found.ratio, kind=found.kind)


def _recognise(pair: Pair, world_size: int) -> Signature:
    """How the wrong tensor relates to the right one, if both exist."""
    if pair.want is None:
        return Signature(words="exists, but not on one device", kind="extra")
    if pair.got is None:
        return Signature(words="does not exist", kind="missing")
    if pair.got.shape != pair.want.shape:
        words = f"shape {tuple(pair.got.shape)}, one device's is {tuple(pair.want.shape)}"
        return Signature(words=words, kind="shape")
    return signature(pair.got, pair.want, world_size)


def _by_how_much(pair: Pair) -> str:
    """The deviation, where there is one."""
    if pair.got is None or pair.want is None or pair.got.shape != pair.want.shape:
        return ""
    return f", deviation {deviation(pair.got, pair.want, pair.scale):.2g}"


def way_out(pair: Pair, found: Signature, alone: SgdTrace, ranks: Sequence[SgdTrace]) -> str:
    """What usually causes this, the most certain cause first."""
    if pair.name in alone.frozen:
        return "a frozen parameter has no gradient and never changes: leave it out of reducing, clipping and updating"
    if pair.rung == "output":
        born = _born_differently(alone, ranks)
        if born:
            return born
    if found.kind in _REARRANGED:
        return _REARRANGED[found.kind]
    if found.ratio is not None:
        causes = _causes_of_ratio(pair.rung, found.ratio, len(ranks), ranks[0].n_microbatches)
        if causes:
            return "; or ".join(causes)
    return _WAYS_OUT.get(pair.rung) or _of_gradients(pair, ranks)


def _born_differently(alone: SgdTrace, ranks: Sequence[SgdTrace]) -> str:
    """Name the first parameter or buffer that was not rank 0's before the first step; empty if there is none."""
    for rank, trace in enumerate(ranks):
        for name, tensor in alone.start.items():
            if name not in trace.start or not torch.equal(trace.start[name], tensor):
                return f"{name} on rank {rank} was not rank 0's before the first step: broadcast it when wrapping"
    return ""


def _of_gradients(pair: Pair, ranks: Sequence[SgdTrace]) -> str:
    """For a gradient that is no multiple of the right one: did the ranks agree on it?"""
    versions = [trace.gradients.get(pair.name) for trace in ranks]
    first = versions[0]
    if all(version is not None and first is not None and same(version, first) for version in versions):
        tied = "it is tied, is the gradient of every use in it? " if pair.name in ranks[0].tied else ""
        return (
            f"all ranks hold the same one, so it was reduced: {tied}does each share count by its number of targets, "
            "and is every micro-batch in it?"
        )
    if "Partial" in ranks[0].places[pair.name] or pair.name in ranks[0].tied:
        place = ranks[0].places[pair.name]
        return f"its copies ({place}) have different ones: each needs the sum; is the gradient of every use in it?"
    return "the ranks hold different ones: average it over the ranks between backward and the optimizer's step"


def _causes_of_ratio(rung: str, ratio: float, world_size: int, n_microbatches: int) -> list[str]:
    """Everything that gives just this ratio."""
    causes = [(cause.ratio(world_size, n_microbatches), cause.way_out) for cause in OF_GRADIENTS]
    if rung == "gradient norm":
        text = "every rank has all gradients: do not add their squares over the ranks"
        causes.insert(4, (math.sqrt(world_size), text))
    return [cause for expected, cause in causes if expected != 1 and agrees(ratio, expected)]
