"""09.7: a router: the experts of each token and their weights, who finds no place, and the loss that evens it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.verify.equality import close

_NAMES = ("the weights", "the dropped choices", "the balance loss")
_FLOOR = "the places are rounded down, and they are to be rounded up"
_ONE_LESS = "an expert has one place less than it should: do you compare with < where <= is meant?"
_LEAN = 1.5  # by which each logit leans towards the first experts, so that they fill up


@dataclass(frozen=True, kw_only=True)
class Routing:
    """So many sequences of so many tokens, and what is looked at."""

    batch: int = 2
    length: int = 12
    experts: int = 4
    k: int = 2
    factor: float = 1.0
    balance: bool = False
    all_rules: bool = True  # whether each wrong way that is known gives something else here
    world_size: int = 1

    def __str__(self) -> str:
        return (
            f"{plural(self.batch, 'sequence')} of {plural(self.length, 'token')}, "
            f"{self.k} of {self.experts} experts, factor {self.factor:g}"
        )


class _Tokens(NamedTuple):
    """What the answer gets; `probe` is what the weights are multiplied with, to have a gradient."""

    logits: Tensor
    k: int
    factor: float
    probe: Tensor
    balance: bool

    def __str__(self) -> str:
        return ""


class _Routed(NamedTuple):
    """Of each token and expert a weight; of each sequence how many choices found no place, and its balance loss."""

    weights: Tensor
    dropped: Tensor
    balance: Tensor


def _records(case: Routing, seed: int) -> Sequence[_Tokens]:
    for attempt in count():
        source = generator(seed, case.batch, case.length, case.experts, case.k, attempt)
        shape = case.batch, case.length, case.experts
        logits, probe = torch.randn(2, *shape, generator=source, dtype=torch.float64)
        lean = torch.linspace(_LEAN, 0, case.experts, dtype=torch.float64)
        logits += lean * torch.arange(1, 1 + case.batch).view(-1, 1, 1)  # in each sequence another one
        tokens = _Tokens(logits, case.k, case.factor, probe, case.balance)
        if not case.all_rules or _tells_all(tokens):
            return [tokens]
    raise AssertionError


def _tells_all(tokens: _Tokens) -> bool:
    """Whether each mistake shows in what is looked at.

    Rounding down is no mistake where the places come out whole, and elsewhere it is one place less.
    """
    right = _use(_routed, tokens)
    _, length, experts = tokens.logits.shape
    alike = _FLOOR if (tokens.factor * length * tokens.k / experts).is_integer() else _ONE_LESS
    shown = _SLIPS if tokens.balance else _OF_WEIGHTS
    return all(not _same(_use(program, tokens), right) for says, program in shown.items() if says != alike)


def _use(answer: Callable[..., Any], tokens: _Tokens) -> tuple[Tensor, ...] | str:
    """Runs on a rank: what is looked at, the gradient last; a text says what came instead."""
    logits = tokens.logits.clone().requires_grad_()
    found = answer(logits, tokens.k, tokens.factor)
    if not isinstance(found, tuple | list) or len(found) != len(_NAMES):
        return wrong_kind(type(found).__name__, f"three things: {', '.join(_NAMES)}")
    for name, one, like in zip(_NAMES, found, _shapes(tokens), strict=True):
        if not isinstance(one, Tensor):
            return f"{name}: {wrong_kind(type(one).__name__, 'a tensor')}"
        if tuple(one.shape) != like:
            return f"{name} have shape {tuple(one.shape)}, expected {like}".replace("loss have", "loss has")
    weights, dropped, balance = found
    seen = weights.detach().double(), dropped.detach().double()
    if not tokens.balance:
        return seen
    total = (weights * tokens.probe).sum() + 10 * balance.sum()
    gradient = torch.autograd.grad(total, logits)[0] if total.requires_grad else torch.zeros_like(logits)
    return *seen, balance.detach().double(), gradient


def _shapes(tokens: _Tokens) -> tuple[tuple[int, ...], ...]:
    shape = tuple(tokens.logits.shape)
    return shape, shape[:1], shape[:1]


def _judge(tokens: _Tokens, found: tuple[Tensor, ...] | str) -> str | None:
    if isinstance(found, str):
        return found
    right = _use(_routed, tokens)
    assert not isinstance(right, str)
    for name, got, want in zip((*_NAMES, "the gradient"), found, right, strict=False):
        if not close(got, want):
            return _where(name, tokens, got, want)
    return None


def _where(name: str, tokens: _Tokens, got: Tensor, want: Tensor) -> str:
    """The first place that is wrong."""
    off = (got - want).abs().nan_to_num(nan=math.inf) > 1e-9 * (1 + want.abs())
    place = off.flatten(1).any(1) if want.dim() > 1 else off
    sequence = int(place.nonzero()[0])
    if name == "the gradient":
        return f"all values are right, but not the gradient that reaches the logits of sequence {sequence}"
    if want.dim() == 1:
        return f"{name} of sequence {sequence}: {got[sequence].item():.6g} there, and {want[sequence].item():.6g} right"
    token = int(off[sequence].any(-1).nonzero()[0])
    one, other = (_short(x[sequence, token]) for x in (got, want))
    return f"{name} of token {token} in sequence {sequence} are {one}, and {other} are right"


def _short(x: Tensor) -> str:
    return "[" + ", ".join(f"{number:.3f}" for number in x.tolist()) + "]"


def _same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(close, one, other))


def _routed(logits: Tensor, k: int, factor: float, *, mistake: str = "") -> _Routed:
    """The right answer, or one with a mistake."""
    batch, length, experts = logits.shape
    probabilities = logits.softmax(-1)
    values, chosen = probabilities.topk(k, -1)
    if mistake != "raw":
        values = values / values.sum(-1, keepdim=True)
    hot = F.one_hot(chosen, experts)  # (B, S, k, E)
    kept = _kept(hot, probabilities, factor, mistake)
    spread = (values.unsqueeze(-1) * hot).sum(2)
    weights = spread * kept
    if mistake == "again":
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300)
    if mistake == "no gradient":
        weights = weights.detach()
    asked = hot.sum(2)
    lost = asked - kept
    dropped = {"tokens": (lost.sum(-1) > 0).sum(-1), "homeless": (kept.sum(-1) == 0).sum(-1)}.get(
        mistake, lost.sum((-1, -2))
    )
    return _Routed(weights, dropped, _balance(kept if mistake == "after" else asked, probabilities, spread, k, mistake))


def _kept(hot: Tensor, probabilities: Tensor, factor: float, mistake: str) -> Tensor:
    """Which choices find a place, (B, S, E)."""
    batch, length, k, experts = hot.shape
    fair = factor * length * (1 if mistake == "without k" else k) / experts
    places = math.floor(fair) if mistake == "floor" else math.ceil(fair)
    places += {"one less": -1, "one more": 1}.get(mistake, 0)
    asked = hot.sum(2)
    if mistake == "batch":
        whole = asked.flatten(0, 1)
        return (whole * (whole.cumsum(0) <= math.ceil(batch * fair))).view_as(asked)
    if mistake == "first choices":
        in_turn = hot.transpose(1, 2).flatten(1, 2)  # choice by choice, and in each of them token by token
        return (in_turn * (in_turn.cumsum(1) <= places)).view(batch, k, length, experts).sum(1)
    if mistake == "largest":
        order = (probabilities * asked).argsort(1, descending=True)
        by_size = asked.gather(1, order)
        return torch.zeros_like(asked).scatter(1, order, by_size * (by_size.cumsum(1) <= places))
    if mistake == "last":
        return asked * (asked.flip(1).cumsum(1).flip(1) <= places)
    return asked * (asked.cumsum(1) <= places)


def _balance(asked: Tensor, probabilities: Tensor, spread: Tensor, k: int, mistake: str) -> Tensor:
    """Of each sequence."""
    batch, length, experts = asked.shape
    share = asked.double().mean(1) / (1 if mistake == "shares" else k)
    likely = (spread if mistake == "likely" else probabilities).mean(1)
    if mistake == "whole batch":
        share, likely = (one.mean(0, keepdim=True).expand(batch, -1) for one in (share, likely))
    if mistake == "detached":
        likely = likely.detach()
    return (1 if mistake == "without E" else experts) * (share * likely).sum(-1)


def _way(mistake: str) -> Callable[..., _Routed]:
    return partial(_routed, mistake=mistake)


_OF_WEIGHTS: Slips = {
    "the weights are the softmax's own. The k chosen ones are to add up to 1, so divide by their sum": _way("raw"),
    "who lost a choice has the weights of the others made larger. They stay as they were before anybody was dropped": (
        _way("again")
    ),
    "places are given away over the whole batch, and each sequence has places of its own": _way("batch"),
    _FLOOR: _way("floor"),
    "the places forget the k: a sequence makes S · k choices, and E experts share these": _way("without k"),
    _ONE_LESS: _way("one less"),
    "an expert has one place more than it should: do you count the choices before a token, or with its own?": (
        _way("one more")
    ),
    "all first choices get their places before all second ones. Tokens are to be served in their order, each with all "
    "its choices": _way("first choices"),
    "the largest probabilities keep their places. Then a token's place depends on tokens that come after it": (
        _way("largest")
    ),
    "the last tokens keep their places, and the first ones are dropped": _way("last"),
    "the dropped ones are counted by token. A token that lost two choices counts twice": _way("tokens"),
    "only tokens without any place are counted as dropped, and each choice counts": _way("homeless"),
}
_OF_BALANCE: Slips = {
    "f counts what is left after dropping. A full expert looks balanced then: count what was chosen": _way("after"),
    "f adds up to k and not to 1: it is a share of S · k choices": _way("shares"),
    "P is the mean of the weights, and it is to be that of all probabilities, those not chosen too": _way("likely"),
    "f and P are those of the whole batch, and each sequence has its own": _way("whole batch"),
    "the factor E is missing, with which a perfect balance gives 1": _way("without E"),
    "all values are right, but no gradient goes back from the balance loss. It flows through P, or the loss teaches "
    "nothing": _way("detached"),
    "all values are right, but no gradient goes back from the weights, so the router does not learn from the experts": (
        _way("no gradient")
    ),
}
_SLIPS: Slips = {**_OF_WEIGHTS, **_OF_BALANCE}

_ROUTER = asked_exercise(
    key="09.7",
    title="a router with places and a balance loss",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "weights": Level(
            points=1,
            cases=(Routing(factor=4.0, all_rules=False), Routing(k=3, experts=8, factor=8.0, all_rules=False)),
            praise="the k largest of each token, and their weights add up to 1",
        ),
        "places": Level(
            points=2,
            cases=(Routing(), Routing(batch=3, length=13, experts=8, factor=1.25)),
            praise="each sequence has its places, in the order of its tokens, and who finds none is counted",
        ),
        "balance": Level(
            points=2,
            again=True,
            cases=(Routing(balance=True), Routing(length=14, experts=8, k=3, factor=1.5, balance=True)),
            praise="and a loss that is 1 where all experts get the same, with a gradient through P",
        ),
        "edges": Level(
            points=1,
            cases=(
                Routing(batch=1, k=1, balance=True, all_rules=False),
                Routing(batch=2, length=1, experts=8, balance=True, all_rules=False),
                Routing(batch=1, k=4, factor=0.5, balance=True, all_rules=False),
            ),
            praise="also for one choice, for one token, and where every expert is chosen",
        ),
    },
    hints=(
        "probabilities.topk(k, dim=-1) gives values and places. Divide the values by their sum. scatter puts them back "
        "into a tensor of zeros, (B, S, E), where the next steps are easier.",
        "Which choices find a place? Make a tensor of 0 and 1, (B, S, E), with a 1 where an expert was chosen. Its "
        "cumsum along the tokens says how many of this sequence have asked for the expert so far.",
        "A choice has a place if that count, its own one included, is at most ceil(factor · S · k / E). The rest get "
        "weight 0, and they are what is dropped.",
        "f is the mean of the 0s and 1s over the tokens, divided by k, before anybody is dropped. P is the mean of the "
        "probabilities over the tokens. The loss of a sequence is E times the sum over the experts of f · P.",
    ),
)
