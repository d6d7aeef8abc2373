"""03.3: shares with different numbers of targets, weighed so that the ranks compute the whole batch's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks.kit import models
from course_lib.checks.kit.models import Kind, Tensors
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.replicas import Guess, all_same, causes_of, why_wrong
from course_lib.checks.kit.spec import Level
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import unmatched
from course_lib.training.batches import IGNORED, Batch
from course_lib.verify.numbers import number_of
from course_lib.verify.ratios import exactly

EMPTY = "a share without a target has no mean, but a sum of 0"


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How many targets count on each rank, out of `rows` rows each."""

    counted: tuple[int, ...]
    model: Kind = "gelu"
    rows: int = 6

    @property
    def world_size(self) -> int:
        return len(self.counted)

    def __str__(self) -> str:
        targets = ", ".join(map(str, self.counted))
        return f"{self.world_size} rank{'s' * (self.world_size > 1)} with {targets} targets, {models.WORDS[self.model]}"


class Given(NamedTuple):
    """The model, and each rank's inputs and targets, of which some are -100."""

    model: Kind
    seed: int
    batches: list[Batch]


class Report(NamedTuple):
    """What a rank's call returned, its gradients, and whether its weights have changed."""

    loss: Any
    gradients: Tensors
    weights_changed: bool


def draw(case: Shares, seed: int) -> Given:
    """Random inputs; the first targets of each rank count."""
    generator = torch.Generator().manual_seed(seed * 1009 + sum(case.counted) + case.world_size)
    batches = []
    for counted in case.counted:
        inputs = torch.randn(case.rows, models.IN, generator=generator, dtype=torch.float64)
        targets = torch.randint(models.OUT, (case.rows,), generator=generator)
        targets[torch.randperm(case.rows, generator=generator)[counted:]] = IGNORED
        batches.append((inputs, targets))
    return Given(case.model, seed, batches)


def attempt(function: Callable[..., Any], given: Given) -> Report:
    """Runs on a rank."""
    model = models.build(given.model, given.seed, torch.float64)
    before = models.state(model)
    ledger.clear()
    loss = function(model, *given.batches[dist.get_rank()])
    after = models.state(model)
    number = number_of(loss)
    changed = any(not before[name].equal(after[name]) for name in before)
    return Report(type(loss).__name__ if number is None else number, models.gradients(model), changed)


def verdict(case: Shares, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Gradients, then the loss, then means."""
    want, loss = reference(given)
    got = [report.gradients for report in reports]
    reason = None if all_same(got, [want] * len(got)) else _wrong_gradients(case, given, got, want)
    if reason is None and any(report.weights_changed for report in reports):
        reason = "right gradients, but the weights have changed: the optimizer comes later"
    if reason is None:
        reason = _wrong_loss([report.loss for report in reports], loss)
    if reason is None and case.world_size > 1 and not any(event.kind == "send" for event in book.events):
        reason = "right values, but nothing is in the ledger: use comm's collectives, not torch.distributed's own"
    if reason is None:
        reason = unmatched(book.events)
    return f"{case}: {reason}" if reason else None


def _wrong_gradients(case: Shares, given: Given, got: Sequence[Tensors], want: Tensors) -> str | None:
    guesses, causes = _guesses(case, given), causes_of(case.world_size)
    return _not_finite(got) or why_wrong(got, want, own=_alone(given), guesses=guesses, causes=causes)


def reference(given: Given) -> tuple[Tensors, float]:
    """Gradients and loss of one device on the batch of all ranks."""
    inputs, targets = (torch.cat(parts) for parts in zip(*given.batches, strict=True))
    return gradients_of(given, lambda model: F.cross_entropy(model(inputs), targets))


def gradients_of(given: Given, loss_of: Callable[[nn.Module], Tensor]) -> tuple[Tensors, float]:
    """What a loss leaves behind on the drawn model."""
    model = models.build(given.model, given.seed, torch.float64)
    loss = loss_of(model)
    loss.backward()
    return models.gradients(model), loss.item()


def _alone(given: Given) -> list[Tensors]:
    """Each rank's own mean."""
    return [gradients_of(given, lambda m, x=x, y=y: _mean(m, x, y))[0] for x, y in given.batches]  # type: ignore[misc]


def _mean(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    counted = int((targets != IGNORED).sum())
    return F.cross_entropy(model(inputs), targets, ignore_index=IGNORED, reduction="sum") / max(counted, 1)


def _guesses(case: Shares, given: Given) -> list[Guess]:
    p, rows = case.world_size, case.rows
    mean_of_means, _ = gradients_of(given, lambda m: sum((_mean(m, *b) for b in given.batches), torch.zeros(())) / p)
    by_rows, _ = gradients_of(
        given,
        lambda m: sum((_mean(m, *b) * int((b[1] != IGNORED).sum()) for b in given.batches), torch.zeros(())) / p / rows,
    )
    few, many = (case.counted.index(pick(case.counted)) for pick in (min, max))
    means = (
        "these are the gradients of the mean of the ranks' means: "
        f"a target on rank {few} weighs {case.counted[many]}/{max(case.counted[few], 1)} times one on rank {many}"
    )
    padding = f"the sum was divided by the {p * rows} rows; {p * rows - sum(case.counted)} of them have no target"
    return [([mean_of_means] * p, means), ([by_rows] * p, padding)] if len(set(case.counted)) > 1 else []


def _not_finite(got: Sequence[Tensors]) -> str | None:
    for rank, gradients in enumerate(got):
        for name, gradient in gradients.items():
            if gradient is not None and not bool(gradient.isfinite().all()):
                return f"{name} on rank {rank} is not finite: {EMPTY}"
    return None


def _wrong_loss(losses: Sequence[Any], want: float) -> str | None:
    for rank, loss in enumerate(losses):
        if isinstance(loss, str):
            return f"right gradients, but rank {rank} returned {loss}, not a number: return the whole batch's loss"
        if not isfinite(loss):
            return f"right gradients, but the loss on rank {rank} is {loss}: {EMPTY}"
        if abs(loss - want) > 1e-9 * abs(want):
            found = f"right gradients, but the loss on rank {rank} is {loss:.6g}, the whole batch's is {want:.6g}"
            return f"{found}: {exactly(loss / want)} it; sum over the ranks before you divide by all targets"
    return None


UNEVEN = ProbeExercise(
    key="03.3",
    title="unequal shares",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
    levels={
        "even": Level(
            points=1,
            cases=(Shares(counted=(6, 6)), Shares(counted=(5, 5, 5, 5), model="mlp")),
            praise="equal shares: the gradient and the loss of one device",
        ),
        "uneven": Level(
            points=2,
            cases=(Shares(counted=(6, 1)), Shares(counted=(2, 6, 3)), Shares(counted=(1, 5, 3, 6), model="tied")),
            praise="each target counts the same, on whichever rank it is",
        ),
        "edges": Level(
            points=2,
            cases=(
                Shares(counted=(4, 0, 2)),
                Shares(counted=(3, 5), model="frozen"),
                Shares(counted=(0, 3), model="tied"),
                Shares(counted=(4,)),
            ),
            praise="right with a rank that has no target, frozen and tied weights, and on one rank",
        ),
    },
    hints=(
        "The whole batch's loss is (sum of all ranks' losses) / (number of all ranks' targets). "
        "Only the sum and the number travel; the division comes after.",
        'F.cross_entropy(..., ignore_index=-100, reduction="sum") is this rank\'s sum, and 0 where no target counts. '
        "The number of all targets: comm.all_reduce(torch.tensor([float(mine)])).",
        "average_gradients divides by world_size. What must each rank's loss be multiplied by, so that "
        "the average is the sum over ranks / all targets?",
    ),
)
