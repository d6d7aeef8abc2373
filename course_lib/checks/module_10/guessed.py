"""10.7: EF21: everybody holds a guess of each rank's gradient, and only the largest changes of it travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_10.top_k import Message, TopK, largest_first
from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.ratios import exactly


@dataclass(frozen=True, kw_only=True)
class Guessed:
    """So many ranks and steps, one number in so many."""

    ranks: int = 3
    steps: int = 1
    one_in: int = 4
    length: int = 14
    still: bool = False  # one gradient in all steps
    world_size: int = 1

    def __str__(self) -> str:
        still = ", the same gradient in each" * self.still
        return f"{plural(self.ranks, 'rank')}, {plural(self.steps, 'step')}{still}, one number in {self.one_in}"


class _OfRanks(NamedTuple):
    """Gradients (steps, ranks, length)."""

    one_in: int
    gradients: Tensor

    def __str__(self) -> str:
        return ""


class _EF21:
    """The right answer, or one with a mistake."""

    def __init__(self, one_in: int, length: int, mistake: str = "") -> None:
        self.one_in, self.mistake = one_in, mistake
        self.guess = self.average = torch.zeros(length, dtype=torch.float64)
        self.kept = torch.zeros_like(self.guess)

    def send(self, gradient: Tensor) -> Message:
        """Values and places of the largest changes."""
        due = {
            "gradient": gradient,
            "memory": gradient + self.kept,
            "twice": 2 * gradient - self.guess,
            "from all": gradient - self.average,
        }.get(self.mistake, gradient - self.guess)
        if self.mistake == "sign":
            due = -due
        places = largest_first(due, -(-len(due) // self.one_in))
        if self.mistake == "by gradient":
            places = largest_first(gradient, len(places))
        sent = torch.zeros_like(due)
        sent[places] = due[places]
        self.kept = due - sent
        self.guess = {
            "replaced": sent,
            "whole": gradient,
            "memory": sent,
            "unchanged": self.guess,
            "shared": self.guess,
        }.get(self.mistake, self.guess + sent)
        return due[places], places.to(torch.int32)

    def receive(self, messages: Sequence[Message]) -> Tensor:
        """What all take for the mean gradient."""
        ways = ("written", "by senders", "sum")
        change = TopK(1, self.mistake if self.mistake in ways else "").mean(messages, self.guess.shape)
        if self.mistake in ("shared", "both"):
            self.guess = self.guess + change
        if self.mistake == "on top":
            return self.guess + change
        self.average = change if self.mistake in ("messages", "memory") else self.average + change
        return self.guess if self.mistake in ("own", "both") else self.average


def _records(case: Guessed, seed: int) -> Sequence[_OfRanks]:
    source = generator(seed, case.ranks, case.steps, case.one_in, case.length)
    gradients = torch.randn(case.steps, case.ranks, case.length, generator=source, dtype=torch.float64)
    if case.still:
        gradients = gradients[:1].expand_as(gradients).contiguous()
    return [_OfRanks(case.one_in, gradients)]


def _use(answer: Callable[..., Any], asked: _OfRanks) -> list[tuple[Any, ...]] | str:
    """Runs on a rank, which stands for all of them: of each step messages, guesses and means. A text is a verdict."""
    boxes = [answer(asked.one_in, asked.gradients.shape[-1]) for _ in asked.gradients[0]]
    steps: list[tuple[Any, ...]] = []
    for of_ranks in asked.gradients:
        messages = [box.send(gradient.clone()) for box, gradient in zip(boxes, of_ranks, strict=True)]
        for message in messages:
            if not isinstance(message, tuple | list) or [*map(type, message)] != [Tensor, Tensor]:
                return f"send() {wrong_kind(type(message).__name__, 'two tensors: values and places')}"
        copies = [tuple(one.clone() for one in message) for message in messages]
        means = [box.receive([tuple(one.clone() for one in message) for message in copies]) for box in boxes]
        if odd := [one for one in means if not isinstance(one, Tensor)]:
            return f"receive() {wrong_kind(type(odd[0]).__name__, 'a tensor')}"
        guesses: list[Any] = [getattr(box, "guess", None) for box in boxes]
        if odd := [one for one in guesses if not isinstance(one, Tensor)]:
            return f"guess is {type(odd[0]).__name__}, not a tensor"
        steps.append(tuple([one.detach().clone() for one in part] for part in (guesses, means)))
        steps[-1] += ([_in_order(*message) for message in copies],)
    return steps


def _in_order(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    order = places.argsort() if places.shape == values.shape else slice(None)
    return values[order], places[order]


def _judge(asked: _OfRanks, found: list[tuple[Any, ...]] | str) -> str | None:
    if isinstance(found, str):
        return found
    boxes = [_EF21(asked.one_in, asked.gradients.shape[-1]) for _ in asked.gradients[0]]
    for step, (of_ranks, (guesses, means, messages)) in enumerate(zip(asked.gradients, found, strict=True), start=1):
        right = [box.send(gradient) for box, gradient in zip(boxes, of_ranks, strict=True)]
        reason = next(filter(None, map(_wrong_message, messages, right)), None)
        reason = reason or _first("the guess", guesses, [box.guess for box in boxes])
        reason = reason or _first("what receive() returns", means, [box.receive(right) for box in boxes])
        if reason:
            return f"step {step}: {reason}"
    return None


def _wrong_message(got: Message, right: Message) -> str | None:
    values, places = _in_order(*right)
    if got[1].dtype != places.dtype:
        return f"the places are {got[1].dtype}, and {places.dtype} is asked"
    if got[1].shape != places.shape:
        return f"{plural(got[1].numel(), 'number')} sent, and {len(places)} is right"
    if not torch.equal(got[1], places):
        return f"sent are the places {got[1].tolist()}, and {places.tolist()} are right"
    return _unlike("the values", got[0], values)


def _first(what: str, got: Sequence[Tensor], want: Sequence[Tensor]) -> str | None:
    reasons = (_unlike(f"{what} on rank {rank}", *pair) for rank, pair in enumerate(zip(got, want, strict=True)))
    return next(filter(None, reasons), None)


def _unlike(what: str, got: Tensor, want: Tensor) -> str | None:
    if form := wrong_form(got, want, 1, ""):
        return f"{what}{form}"
    if close(got, want):
        return None
    ratio = scale_of(got, want)
    return f"{what}: {no_multiple(got, want) if ratio is None else f'{exactly(ratio)} the reference'}"


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_EF21, mistake=mistake)


_SLIPS: Slips = {
    "the largest numbers of the gradient are sent. What others have guessed already need not travel: send the largest "
    "changes": _way("gradient"),
    "that is a memory as in 10.6, of what was not sent. Here a guess of the gradient is kept, and its change is sent": (
        _way("memory")
    ),
    "the places are those of the largest gradient, and those where the guess is furthest off are asked": (
        _way("by gradient")
    ),
    "the change has the wrong sign: the gradient minus the guess": _way("sign"),
    "the gradient is counted twice: a change is the gradient minus the guess": _way("twice"),
    "the guess becomes what was sent. That is a change, to be added to it": _way("replaced"),
    "the guess becomes the gradient itself. But the others have heard of the largest changes alone, and a guess is "
    "what they have": _way("whole"),
    "the guess stays what it was": _way("unchanged"),
    "receive() returns the mean of the changes. They belong on top of the mean of the guesses so far": _way("messages"),
    "receive() returns this rank's own guess, and the mean of all is asked": _way("own"),
    "one guess stands for both. self.guess is of this rank's gradient and grows by its own changes, in send(). What "
    "all have in common, self.mean, grows by the mean of all changes, in receive()": _way("shared"),
    "self.guess grows twice, in send() by this rank's changes and in receive() by everybody's. The second belongs "
    "into self.mean, which is what receive() returns": _way("both"),
    "receive() returns this rank's own guess and the mean of all changes on top. The changes belong on top of "
    "self.mean, which is zeros at first": _way("on top"),
    "the change is taken from self.mean, which is everybody's. This rank's own guess is what its gradient is compared "
    "with": _way("from all"),
    "the changes are added up, and their mean is asked": _way("sum"),
    "a place that several ranks have sent has the last one's change alone": _way("written"),
    "each place is divided by the number of ranks that sent it. The others' guesses have not changed there, which "
    "counts as 0": _way("by senders"),
}

_GUESSED = asked_exercise(
    key="10.7",
    title="EF21, a guess that follows",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "steps": Level(
            points=2,
            again=True,
            cases=(Guessed(), Guessed(steps=4), Guessed(ranks=2, steps=3, one_in=3, length=9)),
            praise="only changes travel, and everybody has the mean of all guesses",
        ),
        "still": Level(
            points=1,
            cases=(Guessed(ranks=2, steps=4, still=True), Guessed(ranks=1, steps=2, one_in=1)),
            praise="of a gradient that stays, every number has arrived after as many steps as one_in says",
        ),
    },
    hints=(
        "send(): change = gradient - self.guess. The places are those of its largest numbers, signs aside, rounded up "
        "and the first ones of equal ones, as in 10.6.",
        "self.guess grows by what was sent, at those places alone. It is a tensor of its own, so do not write into one "
        "that you have returned.",
        "receive(): self.mean begins with zeros and grows by the mean of the changes: index_add_ for each message, "
        "divided by the number of messages.",
    ),
)
