"""Errors of lossy averages: no ladder catches them, for nobody claims to equal one device. Identities do, and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.less.compressor import Compressor
from course_lib.less.largest_values import top_k
from course_lib.parallel.lossy.exchange import ROUNDS, Memories, Method, Rule, Talk, Tensors, next_turn
from course_lib.parallel.lossy.feedback import RESIDUAL, Compressed, ErrorFeedback, compressed_mean
from course_lib.verify.identities.climb import BYTES, SENT_AND_KEPT
from course_lib.verify.museum.bug import ISSUES, Issue

_TENTH = top_k(0.1)


@dataclass(frozen=True, kw_only=True)
class LossyBug:
    """A lossy average with an error in it, and which claim of the identities it breaks first."""

    name: str
    title: str
    method: Method
    breaks: str
    looks: str  # what one sees who looks at the loss
    where: Issue | None = None  # None: ours, made while this library was written


@dataclass(frozen=True)
class _WithResidual:
    """What the wrong ones share with the right one."""

    compressor: Compressor

    @property
    def rules(self) -> Mapping[str, Rule]:
        return {ROUNDS: "apart", RESIDUAL: "own"}

    def residual(self, name: str, like: Tensor, memory: Memories) -> Tensor:
        return memory.row(RESIDUAL, name, like)

    def turns(self, gradients: Tensors, memory: Memories) -> dict[str, int]:
        return {name: next_turn(memory, name) for name in gradients}


@dataclass(frozen=True)
class AddedAfter(_WithResidual):
    """The residual is added to what the compressor has left, so that what is sent has no zeros any more."""

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        _, largest = compressed_mean(self.compressor, gradients, talk, self.turns(gradients, memory))
        sent = {name: x + self.residual(name, x, memory) for name, x in largest.items()}
        for name, gradient in gradients.items():
            memory.keep(RESIDUAL, name, gradient - largest[name])
        everyone = talk.gathered([row.view(torch.uint8) for row in sent.values()])  # with no zeros to leave out
        rows = [of_all.contiguous().view(x.dtype) for of_all, x in zip(everyone, sent.values(), strict=True)]
        return {name: of_all.mean(0) for name, of_all in zip(sent, rows, strict=True)}


@dataclass(frozen=True)
class TakenAway(_WithResidual):
    """The residual's sign is wrong: what was left out is left out twice."""

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        wanted = {name: x - self.residual(name, x, memory) for name, x in gradients.items()}
        means, sent = compressed_mean(self.compressor, wanted, talk, self.turns(gradients, memory))
        for name in gradients:
            memory.keep(RESIDUAL, name, wanted[name] - sent[name])
        return means


@dataclass(frozen=True)
class OfTheMean(_WithResidual):
    """The residual is what the mean lacks of this rank's gradient, in place of what its own message lacks."""

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        wanted = {name: x + self.residual(name, x, memory) for name, x in gradients.items()}
        means, sent = compressed_mean(self.compressor, wanted, talk, self.turns(gradients, memory))
        for name in gradients:
            memory.keep(RESIDUAL, name, torch.where(sent[name] != 0, wanted[name] - means[name], wanted[name]))
        return means


@dataclass(frozen=True)
class LastOneWins(_WithResidual):
    """`out[places] = values` in place of `+=`: where two ranks send the same place, one of them is lost."""

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        turns = self.turns(gradients, memory)
        wanted = {name: x + self.residual(name, x, memory) for name, x in gradients.items()}
        draws = {name: talk.draws(name, turns[name], alike=False) for name in wanted}
        messages = [self.compressor.encode(x, draws[name]) for name, x in wanted.items()]
        found = {}
        for (name, x), message, of_all in zip(wanted.items(), messages, talk.gathered(messages), strict=True):
            memory.keep(RESIDUAL, name, x - self.compressor.decode(message, len(x), x.dtype, draws[name]))
            found[name] = torch.zeros_like(x)
            for row in self.compressor.decode(of_all, len(x), x.dtype, draws[name]):
                found[name] = torch.where(row != 0, row / talk.size, found[name])
        return found


@dataclass(frozen=True)
class BySenders(_WithResidual):
    """A place is divided by how many ranks have sent it."""

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        wanted = {name: x + self.residual(name, x, memory) for name, x in gradients.items()}
        means, sent = compressed_mean(self.compressor, wanted, talk, self.turns(gradients, memory))
        counts = talk.mean([(x != 0).to(x.dtype) for x in sent.values()])
        for name in gradients:
            memory.keep(RESIDUAL, name, wanted[name] - sent[name])
        return {name: means[name] / count.clamp_min(1e-9) for name, count in zip(sent, counts, strict=True)}


_EXHIBITS = (
    LossyBug(
        name="added_after",
        title="The residual is added after compressing",
        method=AddedAfter(_TENTH),
        breaks=BYTES,
        looks="the loss is even better than the right one's: everything is sent, a step late",
    ),
    LossyBug(
        name="forgotten",
        title="What is left out is forgotten",
        method=Compressed(_TENTH),
        breaks=SENT_AND_KEPT,
        looks="it trains, and ends higher; with other data it may not train at all",
        where=Issue(
            title="EFSignSGDCompressor does not seem to use memory",
            link=ISSUES.format("sands-lab/grace", 10),
        ),
    ),
    LossyBug(
        name="taken_away",
        title="The residual's sign",
        method=TakenAway(_TENTH),
        breaks=SENT_AND_KEPT,
        looks="it trains, and ends higher",
    ),
    LossyBug(
        name="of_the_mean",
        title="The residual is taken from the mean",
        method=OfTheMean(_TENTH),
        breaks=SENT_AND_KEPT,
        looks="it trains; with different data it grows",
    ),
    LossyBug(
        name="last_one_wins",
        title="Where two ranks send one place, the last one wins",
        method=LastOneWins(_TENTH),
        breaks=SENT_AND_KEPT,
        looks="it trains almost as well while the ranks' data are alike",
    ),
    LossyBug(
        name="by_senders",
        title="A place is divided by how many ranks sent it",
        method=BySenders(_TENTH),
        breaks=SENT_AND_KEPT,
        looks="its steps are too long, by more the fewer ranks agree",
    ),
)  # fmt: skip
LOSSY_BUGS = {bug.name: bug for bug in _EXHIBITS}
SOUND_LOSSY = ErrorFeedback(_TENTH)
