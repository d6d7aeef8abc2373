"""A learner's training step on each rank's stage: run it, and judge what must hold for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.module_03 import models
from course_lib.checks.module_03.compare import Causes
from course_lib.checks.module_04.compare import Gradients, Guess, Place, gradients_on, why_wrong, wrong_loss
from course_lib.checks.steps import unmatched
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger

FP32 = 4


class Report(NamedTuple):
    """What a rank's call returned, if that is a number, its gradients, and whether its weights have changed."""

    loss: float | None
    gradients: dict[Place, Tensor | None]
    weights_changed: bool


def attempt_on(stage: nn.Module, call: Callable[[], Any]) -> Report:
    """Runs on a rank: `call` is the learner's function with its arguments."""
    before = models.state(stage)
    ledger.clear()
    loss = call()
    after = models.state(stage)
    changed = any(not before[name].equal(after[name]) for name in before)
    kept = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss
    return Report(kept if isinstance(kept, int | float) else None, gradients_on(dist.get_rank(), stage), changed)


def wrong_step(
    reports: Sequence[Report],
    want: Gradients,
    loss: float,
    book: Ledger,
    *,
    guesses: Sequence[Guess] = (),
    causes: Causes = (),
) -> str | None:
    """None if gradients and loss are one device's, by means of `comm`; the order is that of a learner's progress."""
    got = {place: x for report in reports for place, x in report.gradients.items()}
    last = len(reports) - 1
    if reason := why_wrong(got, want, guesses=guesses, causes=causes):
        return reason
    if any(report.weights_changed for report in reports):
        return "right gradients, but the weights have changed: the optimizer comes later"
    if reason := wrong_loss(reports[last].loss, loss, rank=last) or unmatched(book.events, len(reports)):
        return reason
    if last and not any(event.kind == "send" for event in book.events):
        return "right values, but nothing is in the ledger: use comm.send and comm.recv, not torch.distributed's own"
    return None
