"""10.6: top-k with a memory: what is sent and what is kept come to the bit to what there was, step after step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_10.top_k import Message, TopK
from course_lib.verify.equality import close

_NAMES = (("a", (4, 5)), ("b", (4, 5)), ("c", (7,)))
_ORDERS = (("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a"), ("a", "c", "b"))  # of parameters, step by step
Look = Literal["one", "steps", "mean"]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One message, or a few steps of three parameters, or what messages of several ranks come to."""

    look: Look
    one_in: int = 4
    length: int = 19
    ties: bool = False
    ranks: int = 4
    world_size: int = 1

    def __str__(self) -> str:
        if self.look == "steps":
            return f"{plural(len(_ORDERS), 'step')}, one number in {self.one_in}"
        if self.look == "mean":
            return f"messages of {plural(self.ranks, 'rank')}"
        return f"one of {plural(self.length, 'number')} in {self.one_in}{', some of one size' if self.ties else ''}"


class _Gradients(NamedTuple):
    """Gradients by name, one after the other; and messages of ranks, with the shape of what they are of."""

    one_in: int
    gradients: tuple[tuple[str, Tensor], ...]
    messages: tuple[Message, ...] = ()
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return ""


def records(case: Sent, seed: int) -> Sequence[_Gradients]:
    source = generator(seed, case.one_in, case.length, case.ranks)
    if case.look == "mean":
        return [_of_ranks(case, source)]
    if case.look == "steps":
        shapes = dict(_NAMES)
        gradients = tuple((name, torch.randn(*shapes[name], generator=source)) for order in _ORDERS for name in order)
        return [_Gradients(case.one_in, gradients)]
    x = torch.randn(case.length, generator=source)
    if case.ties:  # two sizes; those of the larger one are more than may be sent, at both ends and of both signs
        x = torch.where(torch.rand(case.length, generator=source) < 0.6, 2.0, 1.0) * x.sign()
        x[[0, 1, -2, -1]] = torch.tensor([2.0, -2.0, 2.0, -2.0])
        x[2 : 2 + -(-case.length // case.one_in)] = -2.0
    x[case.length // 2] = -x.abs().max() - float(not case.ties)  # the largest of all is negative
    return [_Gradients(case.one_in, (("a", x),))]


def _of_ranks(case: Sent, source: torch.Generator) -> _Gradients:
    """Of each rank's matrix a few numbers; one place is sent by all, and others by one or by nobody."""
    shape = (3, 5)
    messages = []
    for _ in range(case.ranks):
        others = 1 + torch.randperm(shape[0] * shape[1] - 1, generator=source)[:3]
        places = torch.cat([torch.zeros(1, dtype=torch.int64), others])
        messages.append((torch.randn(len(places), generator=source), places.to(torch.int32)))
    return _Gradients(case.one_in, (), tuple(messages), shape)


def use(answer: Callable[..., Any], asked: _Gradients) -> list[Any] | str:
    """Runs on a rank: a triple for each message, values, places and what is kept; or the mean. A text is a verdict."""
    box = answer(asked.one_in)
    if asked.messages:
        found = box.mean([(values.clone(), places.clone()) for values, places in asked.messages], asked.shape)
        return [found.detach().clone()] if isinstance(found, Tensor) else f"mean() {_no_tensor(found)}"
    sent: list[Any] = []
    for name, gradient in asked.gradients:
        mine = gradient.clone()
        message = box.send(name, mine)
        if not torch.equal(mine, gradient):
            return "the gradient that was given is overwritten: work on a copy"
        if not isinstance(message, tuple | list) or len(message) != 2:
            return f"send() {wrong_kind(type(message).__name__, 'two tensors: values and places')}"
        kept = box.kept.get(name) if isinstance(getattr(box, "kept", None), dict) else None
        if not isinstance(kept, Tensor):
            return f"kept[{name!r}] is {type(kept).__name__} after send(), not a tensor"
        if not all(isinstance(one, Tensor) for one in message):
            return f"send() returned {' and '.join(type(one).__name__ for one in message)}, not two tensors"
        values, places = (one.detach().clone() for one in message)
        order = places.argsort() if places.ndim == 1 and len(places) == len(values) else slice(None)
        sent.append((values[order], places[order], kept.detach().clone()))
    return sent


def _no_tensor(found: Any) -> str:
    return wrong_kind(type(found).__name__, "a tensor")


def judge(asked: _Gradients, found: list[Any] | str) -> str | None:
    if isinstance(found, str):
        return found
    if asked.messages:
        return _wrong_mean(asked, found[0])
    right = TopK(asked.one_in)
    for number, ((name, gradient), (values, places, kept)) in enumerate(zip(asked.gradients, found, strict=True)):
        before = right.kept.get(name, torch.zeros_like(gradient))
        reason = _wrong_message(right.send(name, gradient), values, places)
        reason = reason or _wrong_kept(right.kept[name], kept, gradient + before)
        if reason:
            where = f"step {number // len(_NAMES) + 1}, {name}: " * (len(found) > 1)
            return f"{where}{reason}"
    return None


def _wrong_message(right: Message, values: Tensor, places: Tensor) -> str | None:
    want, where = right[0][right[1].argsort()], right[1].sort().values
    if places.dtype != where.dtype:
        return f"the places are {places.dtype}, and {where.dtype} is asked: 4 bytes for each of them"
    if len(values) != len(places):
        return f"there are {plural(len(values), 'value')} and {plural(len(places), 'place')}"
    if len(places) != len(where):
        return f"{plural(len(places), 'number')} sent, and {len(where)} is right"
    if not torch.equal(places, where):
        place = int((places != where).nonzero()[0])
        return f"sent are the places {places.tolist()}, and {where.tolist()} are right: look at {int(where[place])}"
    if form := wrong_form(values, want, 1, ""):
        return f"the message{form}"
    return None if torch.equal(values, want) else f"values {_nearly(values, want)}"


def _wrong_kept(want: Tensor, kept: Tensor, due: Tensor) -> str | None:
    if form := wrong_form(kept, want, 1, ""):
        return f"what is kept{form}"
    if torch.equal(kept, want):
        return None
    if close(kept, due):
        return "what has been sent is kept as well, so it will be sent again"
    return f"the message is right, but what is kept {_nearly(kept, want)}"


def _nearly(got: Tensor, want: Tensor) -> str:
    """Not equal; perhaps up to rounding."""
    if close(got, want):
        return "agrees up to rounding, and not to the bit: is a difference computed where a copy would do?"
    place = int((got != want).flatten().nonzero()[0])
    there, right = float(got.flatten()[place]), float(want.flatten()[place])
    return f"is not right: number {place} is {there:.4g}, and {right:.4g} is right"


def _wrong_mean(asked: _Gradients, found: Tensor) -> str | None:
    want = TopK(asked.one_in).mean(asked.messages, asked.shape)
    if form := wrong_form(found, want, 1, ""):
        return f"the mean{form}"
    return None if close(found, want) else f"the mean {_nearly(found, want)}"


def _way(mistake: str) -> Callable[..., Any]:
    return partial(TopK, mistake=mistake)


_SLIPS: Slips = {
    "so many numbers are sent as divide evenly, and the rest of a division is left out: round up": _way("down"),
    "their number is rounded to the nearest, and up is asked": _way("nearest"),
    "the largest ones with their signs. A large negative number is just as large": _way("signed"),
    "those are the smallest ones": _way("smallest"),
    "of numbers of one size the last ones are sent, and the first ones are asked. Ranks have to agree on such a "
    "rule, and topk promises none": _way("last"),
    "the memory is empty after each step, so what was left out is lost": _way("forgets"),
    "only what the last gradient has left is kept. What was kept before it is lost": _way("last only"),
    "what has been sent is kept as well, so it will be sent again": _way("all"),
    "what is kept has the wrong sign": _way("sign"),
    "the memory does not help to choose: the largest numbers of the gradient alone are sent. A small number "
    "that comes in every step would wait for ever": _way("by gradient"),
    "the memory is added after choosing, so all of it is sent each time, and far more numbers than asked": _way(
        "added after"
    ),
    "parameters of one shape share a memory. A name has a memory of its own": _way("by shape"),
    "a place that several ranks have sent has the last one's number alone: add them up": _way("written"),
    "each place is divided by the number of ranks that sent it. Those that sent nothing count as well: what they "
    "have is in their memories": _way("by senders"),
    "that is the sum over the ranks. The mean is asked": _way("sum"),
}

_MEMORY = asked_exercise(
    key="10.6",
    title="top-k with a memory",
    records=records,
    use=use,
    judge=judge,
    slips=_SLIPS,
    levels={
        "one": Level(
            points=1,
            cases=(
                Sent(look="one"),
                Sent(look="one", one_in=4, length=21),
                Sent(look="one", one_in=8, length=3),
                Sent(look="one", one_in=5, length=20, ties=True),
            ),
            praise="the largest numbers, signs aside, and the first ones of those that are equal",
        ),
        "memory": Level(
            points=2,
            again=True,
            cases=(Sent(look="steps", one_in=6), Sent(look="steps", one_in=1)),
            praise="nothing is lost: to the bit, what is sent and what is kept are all that there was",
        ),
        "mean": Level(
            points=1,
            alone=True,
            cases=(Sent(look="mean"), Sent(look="mean", ranks=2)),
            praise="the messages of all ranks come to one mean, where some have sent nothing",
        ),
    },
    hints=(
        "send(): due = gradient + what was kept under this name, zeros at first. So many numbers of `due` leave: "
        "-(-due.numel() // one_in) rounds up.",
        "due.flatten().abs().sort(descending=True, stable=True).indices has the places of the largest ones first, and "
        "of equal ones those that stand first.",
        "The values are due.flatten()[places]. What is kept is a copy of `due` with zeros at these places, in its "
        "shape. Nothing is subtracted, so nothing is rounded.",
        "mean(): zeros of so many numbers as the shape has, then index_add_(0, places.long(), values) for each rank's "
        "message, and in the end divide by the number of messages.",
    ),
)
