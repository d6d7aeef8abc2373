"""How 03.8 and 03.9 are judged: a trainer that the learner mended, step for step against one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.kit import models
from course_lib.checks.kit.models import Kind, Tensors
from course_lib.checks.kit.replicas import Guess, all_same, causes_of, why_wrong
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.config import TrainConfig
from course_lib.costs.comm.ddp import fill_buckets
from course_lib.training import step as steps
from course_lib.training.batches import IGNORED, Batch
from course_lib.training.trainer import Trainer, share
from course_lib.verify import RUNGS
from course_lib.verify.numbers import number_of
from course_lib.verify.ratios import exactly

Look = Literal["diagnosis", "values", "calls"]
RATE = 0.1
FP64 = 8


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """A training by SGD: the rows of each step's batch, and which of them have no target."""

    world_size: int
    rows: tuple[int, ...] = (8,)
    ragged: bool = False
    accumulation: int = 1
    model: Kind = "gelu"
    look: Look = "values"

    def __str__(self) -> str:
        if self.look == "diagnosis":
            return "diagnosis"
        parts = [f"{self.world_size} rank{'s' * (self.world_size > 1)}", models.WORDS[self.model]]
        parts += [f"batches of {', '.join(map(str, self.rows))} rows"]
        parts += ["some without a target"] * self.ragged + [f"{self.accumulation} micro-batches"] * (
            self.accumulation > 1
        )
        return ", ".join(parts)


class Given(NamedTuple):
    """The model (rank r is seeded r later), its configuration, and the whole batches."""

    model: Kind
    seed: int
    accumulation: int
    batches: list[Batch]
    look: Look


class Report(NamedTuple):
    """One rank: the diagnosis, or the gradients, the loss and the all-reduces of each step."""

    diagnosis: Any
    gradients: list[Tensors]
    losses: list[Any]
    calls: list[int]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The right diagnosis: a rung and a number, and what a wrong number means."""

    rung: str
    number: float
    name: str  # of the number
    way_out: str


def draw(case: Hunt, seed: int) -> Given:
    """The same batches on all ranks."""
    generator = torch.Generator().manual_seed(seed * 1009 + sum(case.rows) + case.world_size)
    batches = []
    for rows in case.rows:
        inputs = torch.randn(rows, models.IN, generator=generator, dtype=torch.float64)
        targets = torch.randint(models.OUT, (rows,), generator=generator)
        if case.ragged:
            targets[torch.randperm(rows - 1, generator=generator)[: rows // 2]] = IGNORED
        batches.append((inputs, targets))
    return Given(case.model, 1 + 10 * seed, case.accumulation, batches, case.look)


def warm_up() -> None:
    """Runs on a rank: the first optimizer of a process imports PyTorch's compiler, which takes seconds."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)


def attempt(answer: Callable[..., Any], given: Given) -> Report:
    """Runs on a rank: `answer` is the class of a trainer."""
    model = models.build(given.model, given.seed + dist.get_rank(), torch.float64)
    trainer: Trainer = answer(model, TrainConfig(learning_rate=RATE, accumulation=given.accumulation))
    if given.look == "diagnosis":
        return Report(trainer.diagnosis(), [], [], [])  # type: ignore[attr-defined]
    gradients: list[Tensors] = []
    losses: list[Any] = []
    calls: list[int] = []
    for batch in given.batches:
        ledger.clear()
        loss: Any = trainer.compute_gradients(batch)
        number = number_of(loss)
        losses.append(type(loss).__name__ if number is None else number)
        long = [e for e in ledger.current() if e.operation == "all_reduce" and e.kind == "send" and e.nbytes > FP64]
        calls.append(len({event.call for event in long}))
        gradients.append(models.gradients(getattr(trainer.model, "module", trainer.model)))
        trainer.update()
    return Report(None, gradients, losses, calls)


def verdict(answer: Answer, case: Hunt, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """The diagnosis, or step for step gradients and losses, then calls."""
    if case.look == "diagnosis":
        reason = _wrong_diagnosis(answer, reports[0].diagnosis)
    else:
        reason = _wrong_step(case, given, reports)
    if reason is None and case.look == "calls":
        reason = _wrong_calls(case, reports[0].calls)
    return f"{case}: {reason}" if reason else None


def _wrong_diagnosis(answer: Answer, found: Any) -> str | None:
    if not isinstance(found, tuple | list) or len(found) != 2:
        return f"returned {found!r}: give two things, the rung's name and {answer.name}"
    rung, number = found
    if rung not in RUNGS:
        return f"{rung!r} is no rung: they are {', '.join(RUNGS)}"
    if rung != answer.rung:
        place = "an earlier one fails" if RUNGS.index(answer.rung) < RUNGS.index(rung) else "that one passes"
        return f"rung {rung!r}: {place}; climb again, and read which rung the error names"
    given = number_of(number)
    if given is None or not isclose(given, answer.number):
        return f"the rung is right, but {answer.name} is not {number!r}: {answer.way_out}"
    return None


def _wrong_step(case: Hunt, given: Given, reports: Sequence[Report]) -> str | None:
    model = models.build(given.model, given.seed, torch.float64)
    for number, batch in enumerate(given.batches):
        want, loss = _on_one_device(model, batch)
        got = [report.gradients[number] for report in reports]
        reason = None
        if not all_same(got, [want] * len(got)):
            reason = why_wrong(
                got,
                want,
                guesses=_guesses(model, batch, case.world_size),
                causes=causes_of(case.world_size, case.accumulation),
            )
        reason = reason or _wrong_loss([report.losses[number] for report in reports], loss)
        if reason:
            return f"step {number + 1}: {reason}"
        steps.sgd_update(model, RATE)
    return None


def _on_one_device(model: torch.nn.Module, batch: Batch) -> tuple[Tensors, float]:
    loss = steps.compute_gradients(model, batch)
    return models.gradients(model), loss


def _guesses(model: torch.nn.Module, batch: Batch, world_size: int) -> list[Guess]:
    """Each rank's own gradient, as its mean or with its part of the global mean; and the mean of the ranks' means."""
    if world_size == 1:
        return []
    shares = [share(batch, rank, world_size) for rank in range(world_size)]
    counts = [max(steps.count_targets(part), 1) for part in shares]
    sums = [_summed(model, part) for part in shares]
    means = [_times(one, 1 / count) for one, count in zip(sums, counts, strict=True)]
    parts = [_times(one, world_size / sum(counts)) for one in sums]
    mixed = {name: _average([one[name] for one in means]) for name in means[0]}
    alone = "every rank has the gradient of its own share: nothing was averaged"
    guesses: list[Guess] = [(means, alone), (parts, alone)]
    if len(set(counts)) > 1:
        text = f"these are the gradients of the mean of the ranks' means; the ranks have {_listed(counts)} targets"
        guesses.append(([mixed] * world_size, text))
    return guesses


def _summed(model: torch.nn.Module, batch: Batch) -> Tensors:
    model.zero_grad()
    steps.summed_loss(model, batch).backward()
    return models.gradients(model)


def _times(tensors: Tensors, factor: float) -> Tensors:
    return {name: None if tensor is None else tensor * factor for name, tensor in tensors.items()}


def _average(tensors: Sequence[Tensor | None]) -> Tensor | None:
    there = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(there).mean(0) if there else None


def _wrong_loss(losses: Sequence[Any], want: float) -> str | None:
    for rank, loss in enumerate(losses):
        if isinstance(loss, str):
            return f"right gradients, but rank {rank} returned {loss}, not the loss"
        if not abs(loss - want) <= 1e-9 * abs(want):
            found = f"right gradients, but the loss on rank {rank} is {loss:.6g}"
            return f"{found}, {exactly(loss / want)} the whole batch's mean over its targets"
    return None


def _wrong_calls(case: Hunt, calls: Sequence[int]) -> str | None:
    lengths = [p.numel() for p in models.trained(models.build(case.model, 0)).values()]
    target = len(fill_buckets(lengths[::-1], itemsize=FP64))
    for number, got in enumerate(calls, start=1):
        if got > target:
            text = f"values right, but {got} all-reduces of gradients in step {number}, target {target}"
            return f"{text}: only the last micro-batch's backward may average"
    return None


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
