"""Errors of lossy averages: no ladder catches them, for nobody claims to equal one device. Identities do, and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.less.compressor import Compressor
from course_lib.less.largest_values import top_k
from course_lib.less.packing import as_bytes, as_numbers
from course_lib.parallel.lossy.exchange import ROUNDS, Memories, Method, Rule, Talk, Tensors, next_turns
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
    """`ErrorFeedback` in steps, of which each wrong one takes another than the right one."""

    compressor: Compressor

    @property
    def rules(self) -> Mapping[str, Rule]:
        return {ROUNDS: "apart", RESIDUAL: "own"}

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        due = {name: self.due(x, memory.row(RESIDUAL, name, x)) for name, x in gradients.items()}
        means, sent = self.exchanged(due, talk, next_turns(memory, gradients))
        for name, x in due.items():
            memory.keep(RESIDUAL, name, self.left(x, sent[name], means[name]))
        return means

    def due(self, gradient: Tensor, residual: Tensor) -> Tensor:
        return gradient + residual

    def exchanged(self, due: Tensors, talk: Talk, turns: Mapping[str, int]) -> tuple[Tensors, Tensors]:
        return compressed_mean(self.compressor, due, talk, turns)

    def left(self, due: Tensor, sent: Tensor, mean: Tensor) -> Tensor:
        return due - sent


@dataclass(frozen=True)
class AddedAfter(_WithResidual):
    """The residual is added to what the compressor has chosen, so that what is sent has no zeros any more."""

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        _, largest = self.exchanged(gradients, talk, next_turns(memory, gradients))
        sent = {name: x + memory.row(RESIDUAL, name, x) for name, x in largest.items()}
        for name, gradient in gradients.items():
            memory.keep(RESIDUAL, name, gradient - largest[name])
        everyone = talk.gathered([as_bytes(row) for row in sent.values()])  # with no zeros to leave out
        rows = [as_numbers(of_all, x.dtype) for of_all, x in zip(everyone, sent.values(), strict=True)]
        return {name: of_all.mean(0) for name, of_all in zip(sent, rows, strict=True)}


@dataclass(frozen=True)
class TakenAway(_WithResidual):
    """The residual's sign is wrong: what was left out is left out twice."""

    def due(self, gradient: Tensor, residual: Tensor) -> Tensor:
        return gradient - residual


@dataclass(frozen=True)
class OfTheMean(_WithResidual):
    """The residual is what the mean lacks of this rank's gradient, in place of what its own message lacks."""

    def left(self, due: Tensor, sent: Tensor, mean: Tensor) -> Tensor:
        return torch.where(sent != 0, due - mean, due)


@dataclass(frozen=True)
class LastOneWins(_WithResidual):
    """`out[places] = values` in place of `+=`: where two ranks send the same place, one of them is lost."""

    def exchanged(self, due: Tensors, talk: Talk, turns: Mapping[str, int]) -> tuple[Tensors, Tensors]:
        draws = {name: talk.draws(name, turns[name], alike=False) for name in due}
        messages = [self.compressor.encode(x, draws[name]) for name, x in due.items()]
        means, sent = {}, {}
        for (name, x), of_all in zip(due.items(), talk.gathered(messages), strict=True):
            rows = self.compressor.decode(of_all, len(x), x.dtype, draws[name])
            means[name], sent[name] = torch.zeros_like(x), rows[talk.rank]
            for row in rows:
                means[name] = torch.where(row != 0, row / talk.size, means[name])
        return means, sent


@dataclass(frozen=True)
class BySenders(_WithResidual):
    """A place is divided by how many ranks have sent it."""

    def exchanged(self, due: Tensors, talk: Talk, turns: Mapping[str, int]) -> tuple[Tensors, Tensors]:
        means, sent = super().exchanged(due, talk, turns)
        shares = talk.mean([(x != 0).to(x.dtype) for x in sent.values()])
        return {name: means[name] / share.clamp_min(1e-9) for name, share in zip(sent, shares, strict=True)}, sent


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
)
LOSSY_BUGS = {bug.name: bug for bug in _EXHIBITS}
SOUND_LOSSY = ErrorFeedback(_TENTH)
