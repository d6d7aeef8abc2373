"""A learner's training step on each rank's stage: run it, and judge what must hold for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.kit import models
from course_lib.checks.kit.parts import Gradients, Guess, Place, Sizes, gradients_on, why_wrong, wrong_loss
from course_lib.checks.kit.tensors import Causes
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import unmatched

FP32 = 4
ALL_ZEROS = (0.0, "set to zero afterwards, or computed from an inbox before its handle's wait()?")


class Report(NamedTuple):
    """What a rank's call returned, its gradients, whether its weights have changed, or were written at all."""

    loss: float | str  # a text says what it is, if it is no number
    gradients: dict[Place, Tensor | None]
    weights_changed: bool
    weights_written: bool


def attempt_on(stage: nn.Module, call: Callable[[], Any]) -> Report:
    """Runs on a rank: `call` is the learner's function with its arguments."""
    before, untouched = models.state(stage), _marks(stage)
    ledger.clear()
    with _nothing_in_empty():
        loss = call()
    after = models.state(stage)
    changed = any(not before[name].equal(after[name]) for name in before)
    return Report(_number(loss), gradients_on(dist.get_rank(), stage), changed, _marks(stage) != untouched)


@contextmanager
def _nothing_in_empty() -> Iterator[None]:
    """Let torch.empty give nan: what is read too early shows, where old memory may hold the right numbers."""
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def _marks(stage: nn.Module) -> list[tuple[int, int]]:
    """What writing a weight changes, even if its numbers stay."""
    return [(p._version, p.data_ptr()) for p in stage.parameters()]


def _number(loss: object) -> float | str:
    """A number as it is, anything else in words: it need not be able to travel."""
    if type(loss) is not bool and isinstance(loss, Real):
        return float(loss)
    if isinstance(loss, Tensor):
        return "a tensor with its history" if loss.requires_grad else "a tensor"
    return type(loss).__name__


def wrong_step(
    reports: Sequence[Report],
    want: Gradients,
    loss: float,
    book: Ledger,
    *,
    guesses: Sequence[Guess] = (),
    causes: Causes = (),
    sizes: Sizes | None = None,
) -> str | None:
    """None if gradients and loss are one device's, by means of `comm`; the order is that of a learner's progress."""
    got = {place: x for report in reports for place, x in report.gradients.items()}
    last = len(reports) - 1
    if reason := why_wrong(got, want, guesses=guesses, causes=[*causes, ALL_ZEROS], sizes=sizes):
        return reason
    if any(report.weights_changed for report in reports):
        return "right gradients, but the weights have changed: the optimizer comes later"
    if reason := wrong_loss(reports[last].loss, loss, rank=last) or unmatched(book.events):
        return reason
    if last and not any(event.kind == "send" for event in book.events):
        return "right values, but nothing is in the ledger: use comm.send and comm.recv, not torch.distributed's own"
    return None
