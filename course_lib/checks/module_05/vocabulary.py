"""05.5: cross-entropy of logits of which each rank has some words, without putting them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Parts, cut, generator, parts_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level
from course_lib.split import split_sizes

_NO_NUMBER = (
    "did an exp overflow, or are all powers of a position 0? Subtract the largest logit of the position over all "
    "ranks, no more and no less"
)
LOOKED_UP = "a target that another rank has was looked up here as well"
IS_ZERO = "where `mine` is false the target's logit is 0"
NAMES = ("the loss of each target", "the logits' gradient")


@dataclass(frozen=True, kw_only=True)
class CutWords:
    """Logits of `words` words for batch x sequence positions, and which of the words are targets."""

    world_size: int
    words: int = 16
    batch: int = 2
    sequence: int = 3
    size: float = 1.0  # of the logits
    targets: Literal["any", "first", "last"] = "any"
    look: bool = False

    @property
    def positions(self) -> int:
        """All of them."""
        return self.batch * self.sequence

    def __str__(self) -> str:
        shape = f"{self.batch} x {self.sequence} positions, {self.words} words"
        extras = [f"logits up to {self.size:g}"] * (self.size > 1)
        extras += [f"targets on the {self.targets} rank alone"] * (self.targets != "any")
        return ", ".join([plural(self.world_size, "rank"), shape, *extras])


def _drawn(case: CutWords, seed: int) -> Parts:
    p, source = case.world_size, generator(seed, case.world_size, case.words, case.positions)
    sizes = split_sizes(case.words, p)
    firsts = [sum(sizes[:rank]) for rank in range(p)]
    logits = case.size * torch.randn(case.batch, case.sequence, case.words, generator=source)
    low = firsts[-1] if case.targets == "last" else 0
    high = sizes[0] if case.targets == "first" else case.words
    targets = torch.randint(low, high, (case.batch, case.sequence), generator=source)
    targets[-1, -1] = high - 1  # the last word that may be one, and the first
    targets[0, 0] = low
    whole = logits.clone().requires_grad_()
    losses = F.cross_entropy(whole.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    (gradient,) = torch.autograd.grad(losses.mean(), whole)
    return Parts(
        arguments=[(part, targets, firsts[rank]) for rank, part in enumerate(cut(logits, p, 2))],
        wanted=[(losses.detach(), part) for part in cut(gradient, p, 2)],
    )


def _loss_of_parts(
    logits: Tensor,
    targets: Tensor,
    first: int,
    *,
    largest: Callable[[Tensor], Tensor] = lambda x: comm.all_reduce(x, op=ReduceOp.MAX),
    total: Callable[[Tensor], Tensor] = comm.all_reduce,
    found: Callable[[Tensor], Tensor] = comm.all_reduce,
    here: Callable[[Tensor, int], Tensor] = lambda place, width: (place >= 0) & (place < width),
    looked_up: Callable[[Tensor, int], Tensor] = torch.remainder,
    term: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda logit, shift, mine: (logit - shift) * mine,
    softmax: Callable[[Tensor, Tensor], Tensor] = lambda powers, everything: powers / everything.unsqueeze(-1),
    marked: Callable[[Tensor], Tensor] = lambda mine: mine,
) -> tuple[Tensor, Tensor]:
    """Right, unless a part is chosen otherwise."""
    width, place = logits.shape[-1], targets - first
    mine, place = here(place, width), looked_up(place, width).unsqueeze(-1)
    shift = largest(logits.amax(-1))
    powers = (logits - shift.unsqueeze(-1)).exp()
    everything = total(powers.sum(-1))
    losses = everything.log() - found(term(logits.gather(-1, place).squeeze(-1), shift, mine))
    hot = torch.zeros_like(logits).scatter_(-1, place, marked(mine).to(logits.dtype).unsqueeze(-1))
    return losses, (softmax(powers, everything) - hot) / targets.numel()


def _what_travels(case: CutWords, calls: Counter[str]) -> str:
    if calls["all_gather"] or calls["broadcast"] or calls["gather"]:
        return f"the logits are put together; of {case.words} logits a loss needs three numbers for each position"
    return "a maximum, a sum and the target's logit for each position are all that has to travel"


def _same(x: Tensor) -> Tensor:
    return x


def _first_word(place: Tensor, width: int) -> Tensor:
    """Where the target is another rank's, this rank's first word."""
    return place.where((place >= 0) & (place < width), 0)


def _nearest_word(place: Tensor, width: int) -> Tensor:
    return place.clamp(0, width - 1)


def _one_too_many(place: Tensor, width: int) -> Tensor:
    return (place >= 0) & (place <= width)


def _unmasked(logit: Tensor, shift: Tensor, mine: Tensor) -> Tensor:
    return logit - shift


def _raw(logit: Tensor, shift: Tensor, mine: Tensor) -> Tensor:
    return logit * mine


def _with_own_maximum(logits: Tensor, targets: Tensor, first: int) -> tuple[Tensor, Tensor]:
    losses, gradient = _loss_of_parts(logits, targets, first, largest=_same, term=_raw)
    return losses + logits.amax(-1), gradient


def _put_back_too_often(logits: Tensor, targets: Tensor, first: int) -> tuple[Tensor, Tensor]:
    losses, gradient = _loss_of_parts(logits, targets, first)
    return losses + comm.all_reduce(logits.amax(-1), op=ReduceOp.MAX), gradient


_LOSS = parts_exercise(
    key="05.5",
    title="a loss without all logits",
    names=NAMES,
    draw=_drawn,
    asked=lambda case: [Asked("all_reduce", case.positions)] * 3,
    slips={
        "each rank subtracted a maximum of its own, so the powers that were added up do not belong to one scale": (
            lambda *given: _loss_of_parts(*given, largest=_same)
        ),
        "each rank subtracted a maximum of its own and put it back afterwards: the powers that were added up do not "
        "belong to one scale": _with_own_maximum,
        "the largest logit was subtracted in the sum and not in the target's logit: it drops out only if both lose it, "
        "or if it is put back after the logarithm": lambda *given: _loss_of_parts(*given, term=_raw),
        "every rank subtracted the largest logit in its term of the target's logit, also those that do not have the "
        "target: it is lost once from every rank": (
            lambda *given: _loss_of_parts(*given, term=lambda logit, shift, mine: logit * mine - shift)
        ),
        "the largest logit was put back after the logarithm, where the target's logit had lost it too: it drops out": (
            _put_back_too_often
        ),
        "the ranks' sums of powers were averaged, and they add up": (
            lambda *given: _loss_of_parts(*given, total=lambda x: comm.all_reduce(x, op=ReduceOp.AVG))
        ),
        "each rank divides by the sum over its own words: that is a softmax over a part of the vocabulary": (
            lambda *given: _loss_of_parts(*given, total=_same)
        ),
        "the losses are right, but the gradient has a softmax over this rank's words alone: it adds up to 1 on each "
        "rank, where all ranks together should have 1": lambda *given: _loss_of_parts(
            *given, softmax=lambda powers, everything: powers / powers.sum(-1, keepdim=True)
        ),
        "the losses are right, but the gradient has no -1 at the target: over all ranks its rows add up to more than "
        "0": lambda *given: _loss_of_parts(*given, marked=torch.zeros_like),
        "the losses are right, but the gradient has a -1 on every rank, also on those that do not have the target": (
            lambda *given: _loss_of_parts(*given, looked_up=_first_word, marked=torch.ones_like)
        ),
        "the losses are right, but the -1 stands on ranks that do not have the target, too": (
            lambda *given: _loss_of_parts(*given, looked_up=_nearest_word, marked=torch.ones_like)
        ),
        "only the rank that has the target knows its logit, and the others took 0 for it": (
            lambda *given: _loss_of_parts(*given, found=_same)
        ),
        f"{LOOKED_UP}, its place taken modulo the width: {IS_ZERO}": lambda *given: _loss_of_parts(
            *given, term=_unmasked
        ),
        f"{LOOKED_UP}, as this rank's first word: {IS_ZERO}": (
            lambda *given: _loss_of_parts(*given, looked_up=_first_word, term=_unmasked)
        ),
        f"{LOOKED_UP}, as this rank's nearest word: {IS_ZERO}": (
            lambda *given: _loss_of_parts(*given, looked_up=_nearest_word, term=_unmasked)
        ),
        f"{LOOKED_UP}, as this rank's first word, and got a -1: {IS_ZERO}, and there is no -1": (
            lambda *given: _loss_of_parts(*given, looked_up=_first_word, term=_unmasked, marked=torch.ones_like)
        ),
        f"{LOOKED_UP}, as this rank's nearest word, and got a -1: {IS_ZERO}, and there is no -1": (
            lambda *given: _loss_of_parts(*given, looked_up=_nearest_word, term=_unmasked, marked=torch.ones_like)
        ),
        f"{LOOKED_UP}, its place taken modulo the width, and got a -1: {IS_ZERO}, and there is no -1": (
            lambda *given: _loss_of_parts(*given, here=lambda place, width: torch.ones_like(place, dtype=torch.bool))
        ),
        "a rank took the word number first + width for its own, and that is the next rank's": (
            lambda *given: _loss_of_parts(*given, here=_one_too_many, looked_up=_nearest_word)
        ),
        "`first` is not rank x width where the vocabulary does not divide: use the `first` that you are given": (
            lambda logits, targets, first: _loss_of_parts(logits, targets, dist.get_rank() * logits.shape[-1])
        ),
        "each rank's words were counted from first + 1. The first one is word number `first`, at place 0": (
            lambda logits, targets, first: _loss_of_parts(logits, targets, first + 1)
        ),
        "each rank's words were counted from first - 1. The first one is word number `first`, at place 0": (
            lambda logits, targets, first: _loss_of_parts(logits, targets, first - 1)
        ),
        "the last word of each rank was not taken for one of its own": (
            lambda *given: _loss_of_parts(*given, here=lambda place, width: (place >= 0) & (place < width - 1))
        ),
        "the first word of each rank was not taken for one of its own": (
            lambda *given: _loss_of_parts(*given, here=lambda place, width: (place > 0) & (place < width))
        ),
    },
    advice=Advice(
        causes={
            NAMES[1]: (
                (lambda case: case.positions, "that is of the losses' sum; their mean is what is asked"),
                (lambda case: case.positions / case.batch, "was it divided by the sequences, and not by all targets?"),
                (lambda case: case.batch, "was it divided by the positions of one sequence, and not by all targets?"),
                (
                    lambda case: 1 / case.world_size,
                    "was it divided by the number of ranks as well? All ranks have the same targets",
                ),
            )
        },
        nan=lambda case: _NO_NUMBER if case.size > 1 else "",
        traffic=_what_travels,
    ),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(CutWords(world_size=4), CutWords(world_size=2)),
            praise="losses and gradients of one device that has all logits",
        ),
        "stable": Level(
            points=1,
            cases=(CutWords(world_size=2, size=1e4), CutWords(world_size=4, size=1e4)),
            praise="no exp overflows, because the largest logit of all ranks is subtracted first",
        ),
        "calls": Level(
            points=1,
            cases=(CutWords(world_size=2, words=40, look=True), CutWords(world_size=4, words=64, look=True)),
            praise="three numbers for each position travel, however many words there are",
        ),
        "edges": Level(
            points=1,
            cases=(
                CutWords(world_size=3, words=17, look=True),
                CutWords(world_size=4, words=18, targets="last", look=True),
                CutWords(world_size=2, batch=1, sequence=1, targets="first", look=True),
                CutWords(world_size=1, look=True),
            ),
            praise="right for a vocabulary that does not divide, for targets on one rank alone, and on one rank",
        ),
    },
    hints=(
        "On one device: losses = log(sum of exp(logits)) - logit of the target. The sum is over all words, so it is a "
        "sum of the ranks' sums.",
        "exp(1000) is inf. Subtract the largest logit of a position first, on all ranks the same one: "
        "comm.all_reduce(..., op=dist.ReduceOp.MAX). It drops out of the loss if the target's logit loses it too.",
        "mine = (targets >= first) & (targets < first + width). Where it is false, look up any word, place 0 say, "
        "multiply by zero, and let the all-reduce bring the right one.",
        "The gradient of the mean is (softmax - 1 at the target) / number of targets. A rank has its words of the "
        "softmax already, and needs no message for it.",
    ),
)
