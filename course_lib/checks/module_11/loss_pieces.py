"""11.5: head and loss of some tokens at a time: values, gradients, and the most memory that there is at a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import FP64, Level
from course_lib.gauges.allocated import peak_bytes
from course_lib.training.batches import IGNORED
from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.ratios import exactly

_NAMES = ("the loss", "the gradient of hidden", "the gradient of head")
_WIDTH = 5
_PART = 4  # a quarter of what all logits would take is allowed


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """So many tokens and words, in pieces; of how many of the first tokens the target does not count."""

    tokens: int = 12
    words: int = 7
    pieces: int = 3
    unseen: int = 0
    memory: bool = False
    world_size: int = 1

    def __str__(self) -> str:
        unseen = f", {self.unseen} targets do not count" if self.unseen else ""
        return f"{plural(self.tokens, 'token')}, {plural(self.words, 'word')}, {plural(self.pieces, 'piece')}{unseen}"


class _Ends(NamedTuple):
    """What the answer gets, and how many bytes it may take; 0: nobody looks."""

    hidden: Tensor
    head: Tensor
    targets: Tensor
    pieces: int
    most: int

    def __str__(self) -> str:
        return ""


class _Ended(NamedTuple):
    """What came back, and the most bytes at a moment."""

    results: tuple[Tensor | str, ...]
    peak: int


def _records(case: Tokens, seed: int) -> Sequence[_Ends]:
    source = generator(seed, case.tokens, case.words, case.pieces)
    hidden = torch.randn(case.tokens, _WIDTH, generator=source, dtype=torch.float64)
    head = torch.randn(case.words, _WIDTH, generator=source, dtype=torch.float64)
    targets = torch.randint(0, case.words, (case.tokens,), generator=source)
    targets[: case.unseen] = IGNORED
    most = case.tokens * case.words * FP64 // _PART if case.memory else 0
    return [_Ends(hidden, head, targets, case.pieces, most)]


def _use(answer: Callable[..., Any], given: _Ends) -> _Ended:
    """Runs on a rank."""
    results = _several(answer(*given[:4]))
    whole = given.most and len(results) == len(_NAMES)
    return _Ended(results, peak_bytes(lambda: answer(*given[:4])) if whole else 0)


def _several(found: Any) -> tuple[Tensor | str, ...]:
    """One text alone says what came instead of three things."""
    if not isinstance(found, tuple | list) or len(found) != len(_NAMES):
        return (type(found).__name__,)
    loss, *gradients = found
    if isinstance(loss, int | float):
        loss = torch.tensor(float(loss), dtype=torch.float64)
    return tuple(one.detach().clone() if isinstance(one, Tensor) else type(one).__name__ for one in (loss, *gradients))


def _judge(given: _Ends, ended: _Ended) -> str | None:
    if len(ended.results) != len(_NAMES):
        return wrong_kind(str(ended.results[0]), f"three things: {', '.join(_NAMES)}")
    for name, got, want in zip(_NAMES, ended.results, _in_pieces(*given[:4]), strict=True):
        if form := wrong_form(got, want, 1, "is there a piece without a target that counts? Its mean is 0 / 0"):
            return f"{name}{form}"
        if isinstance(got, Tensor) and not close(got, want):
            ratio = scale_of(got, want)
            return f"{name} {no_multiple(got, want) if ratio is None else f'is {exactly(ratio)} the reference'}"
    if ended.peak > given.most > 0:
        return (
            f"right, but at its largest it takes {ended.peak / 1e6:.1f} MB beyond what it is given, and "
            f"{given.most / 1e6:.1f} MB are allowed: does a piece's backward run before the next piece begins?"
        )
    return None


def _in_pieces(hidden: Tensor, head: Tensor, targets: Tensor, pieces: int, *, mistake: str = "") -> tuple[Tensor, ...]:
    """The right answer, or one with a mistake."""
    h, W = (x.clone().requires_grad_() for x in (hidden, head))
    size = -(-len(targets) // pieces)
    if mistake == "rest":
        size = max(len(targets) // pieces, 1)
    starts = range(0, size * pieces if mistake == "rest" else len(targets), size)
    counted = int((targets != IGNORED).sum())
    if mistake == "all":
        counted = len(targets)
    total = torch.zeros((), dtype=hidden.dtype)
    for start in starts:
        some, theirs = h[start : start + size], targets[start : start + size]
        if mistake == "last" and start:
            W.grad = None
        here = F.cross_entropy(some @ W.T, theirs, ignore_index=IGNORED, reduction="sum")
        if mistake == "means":
            loss = here / max(int((theirs != IGNORED).sum()), 1) / len(starts)
        else:
            loss = here / (1 if mistake == "sum" else counted)
        loss.backward()
        total = loss.detach() if mistake == "last loss" else total + loss.detach()
    assert h.grad is not None and W.grad is not None
    if mistake == "means of losses":
        return _in_pieces(hidden, head, targets, pieces, mistake="means")[0], h.grad, W.grad
    return total, h.grad, W.grad


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_in_pieces, mistake=mistake)


_SLIPS: Slips = {
    "a mean of the pieces' means: a target weighs more in a piece where few of them count": _way("means"),
    "divided by all tokens. Those whose target is -100 do not count": _way("all"),
    "nothing was divided. A mean over all targets that count is asked": _way("sum"),
    "the tokens that are left over after `pieces` equal pieces are missing": _way("rest"),
    "the gradient of head is that of the last piece alone. It adds up over the pieces": _way("last"),
    "the loss is that of the last piece alone": _way("last loss"),
    "the gradients are right, and the loss is a mean of the pieces' means": _way("means of losses"),
}

_PIECES = asked_exercise(
    key="11.5",
    title="the loss in pieces",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    large=lambda case: case.memory,
    levels={
        "values": Level(
            points=2,
            cases=(Tokens(unseen=3), Tokens(tokens=13, pieces=4, unseen=2)),
            praise="the mean over all targets that count, and its gradients, from pieces",
        ),
        "edges": Level(
            points=1,
            again=True,
            cases=(
                Tokens(unseen=5),
                Tokens(tokens=5, pieces=8),
                Tokens(tokens=9, pieces=1, unseen=1),
            ),
            praise="also with a piece where nothing counts, and with more pieces than tokens",
        ),
        "memory": Level(
            points=2,
            cases=(Tokens(tokens=720, words=1300, pieces=36, memory=True),),
            praise="and the logits of all tokens never exist together, nor do their gradients",
        ),
    },
    hints=(
        "How many targets count? (targets != -100).sum(), of all tokens, before you begin. Each piece's loss is a sum, "
        'F.cross_entropy(..., reduction="sum"), divided by that number.',
        "Give hidden and head a history of your own: h = hidden.detach().clone().requires_grad_(), and so with head. "
        "Then each piece's (h[some] @ W.T) has one.",
        "Call .backward() on each piece's loss before the next piece begins. Gradients add up in h.grad and W.grad, "
        "and the piece's logits are gone.",
        "tokens.split(size) with size = ceil(T / pieces) leaves nobody out. There may be fewer pieces then.",
    ),
)
