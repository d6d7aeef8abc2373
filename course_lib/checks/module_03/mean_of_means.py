"""How 03.8 and 03.9 are judged: a trainer that the learner mended, step for step against one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from course_lib import comm
from course_lib.checks.kit import models
from course_lib.checks.kit.forwards import forwards_of
from course_lib.checks.kit.gradients import agree, gradients_on
from course_lib.checks.kit.hunt import RATE, Given, hunt_exercise
from course_lib.checks.kit.models import Kind
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.said import by_the_library, import_optimizers, plural
from course_lib.checks.kit.scene import Report, Scene, number_or_type, together
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.kit.step import Words, causes_of_averages, possible, wrong_values
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.config import TrainConfig
from course_lib.costs.comm.ddp import fill_buckets
from course_lib.parallel.data.replicate import broadcast_state
from course_lib.training import step as steps
from course_lib.training.batches import IGNORED, Batch
from course_lib.training.trainer import Trainer, share

_CAUSES = causes_of_averages(lambda case: case.accumulation)
_WORDS = Words(too_much="each rank computes its own share, one micro-batch after the other")


@dataclass(frozen=True, kw_only=True)
class MeansHunt:
    """A training by SGD: the rows of each step's batch, and which of them have no target."""

    world_size: int
    rows: tuple[int, ...] = (8,)
    ragged: bool = False
    accumulation: int = 1
    model: Kind = "gelu"
    diagnosis: bool = False
    look: bool = False  # at the calls

    def __str__(self) -> str:
        if self.diagnosis:
            return "diagnosis"
        parts = [plural(self.world_size, "rank"), models.WORDS[self.model]]
        parts += [f"batches of {', '.join(map(str, self.rows))} rows"] + ["some without a target"] * self.ragged
        parts += [f"{self.accumulation} micro-batches"] * (self.accumulation > 1)
        return ", ".join(parts)


class _Trained(NamedTuple):
    """One rank: the diagnosis, or what each step left, and whether the course's own engine computed it."""

    diagnosis: Any
    steps: list[Report]
    by_engine: bool = False


def _batches(case: MeansHunt, generator: torch.Generator) -> list[Batch]:
    found = []
    for rows in case.rows:
        inputs, targets = models.rows_of(rows, generator)
        if case.ragged:
            targets[torch.randperm(rows - 1, generator=generator)[: rows // 2]] = IGNORED
        found.append((inputs, targets))
    return found


def _attempt(answer: Callable[..., Any], given: Given) -> _Trained:
    """Runs on a rank: `answer` is the class of a trainer."""
    case, rank = given.case, dist.get_rank()
    model = models.build(case.model, given.seed + rank, torch.float64)
    trainer = answer(model, TrainConfig(learning_rate=RATE, accumulation=case.accumulation))
    if case.diagnosis:
        return _Trained(trainer.diagnosis(), [])
    module, found, by_engine = getattr(trainer.model, "module", trainer.model), [], False
    for batch in given.batches:
        ledger.clear()
        with forwards_of(module) as forwards, patch.object(trainer.engine, "run", wraps=trainer.engine.run) as run:
            loss = number_or_type(trainer.compute_gradients(batch), tensors=True)
        by_engine |= run.called
        long = [e for e in ledger.current() if e.operation == "all_reduce" and e.kind == "send" and e.nbytes > FP64]
        more = {"calls": len({event.call for event in long})}
        found.append(Report(gradients_on(rank, module), loss, False, False, forwards, more))
        trainer.update()
    return _Trained(None, found, by_engine)


def _scene(case: MeansHunt, model: nn.Module, batch: Batch) -> Scene:
    """One step, from the weights that the model has."""
    p, total = case.world_size, steps.count_targets(batch)
    shares = [share(batch, rank, p) for rank in range(p)]
    return Scene(
        parts=[model] * p,
        arguments=lambda model, rank: (),
        loss=lambda: steps.summed_loss(model, batch) / total,
        alone=lambda rank: steps.summed_loss(model, shares[rank]) * p / total,
        told=range(p),
        rows=-(-len(shares[0][1]) // case.accumulation),
        held=1 if case.accumulation > 1 else 0,
        share=len(shares[0][1]),
        dtype=torch.float64,
    )


def _wrong(given: Given, reports: Sequence[_Trained], book: Ledger, levels: Mapping[str, Level]) -> str | None:
    return _first_wrong(given, reports, levels) or _wrong_calls(given.case, reports[0].steps)


def not_ones_own(given: Given, reports: Sequence[_Trained], book: Ledger, levels: Mapping[str, Level]) -> str | None:
    """Where the micro-batches are what is to be written: also whether the course's engine went through them."""
    by_engine = any(report.by_engine for report in reports)
    reason = _wrong(given, reports, book, levels)
    return reason or by_the_library("the engine of Trainer.compute_gradients" if by_engine else "")


def _first_wrong(given: Given, reports: Sequence[_Trained], levels: Mapping[str, Level]) -> str | None:
    case: MeansHunt = given.case
    causes, model = possible(_CAUSES, case, levels), models.build(case.model, given.seed, torch.float64)
    for number, batch in enumerate(given.batches):
        mine = [report.steps[number] for report in reports]
        if reason := wrong_values(_scene(case, model, batch), mine, causes, _WORDS):
            return f"step {number + 1}: {reason}"
        steps.sgd_update(model, RATE)
    return None


class MeanOfMeans(Trainer):
    """03.8 with one of its two bugs: each rank's mean, averaged."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        broadcast_state(model)
        super().__init__(model, config)

    def diagnosis(self) -> tuple[str, float]:
        """Right."""
        return "gradients", 4.0

    def compute_gradients(self, batch: Batch) -> float:
        """Of one step, in one piece."""
        mine = share(batch, dist.get_rank(), dist.get_world_size())
        loss = steps.summed_loss(self.model, mine) / max(steps.count_targets(mine), 1)
        loss.backward()
        for p in models.trained(self.model).values():
            assert p.grad is not None
            comm.all_reduce_(p.grad, op=dist.ReduceOp.AVG)
        return float(comm.all_reduce(loss.detach(), op=dist.ReduceOp.AVG))


def _left(case: MeansHunt, given: Given, trial: Trial) -> Any:
    """The gradients of the first step, if they are wrong."""
    if case.diagnosis:
        return None
    got = together([report.steps[0] for report in trial.reports])
    model = models.build(case.model, given.seed, torch.float64)
    return None if agree(got, _scene(case, model, given.batches[0]).wanted[0]) else got


def _wrong_calls(case: MeansHunt, mine: Sequence[Report]) -> str | None:
    lengths = [p.numel() for p in models.trained(models.build(case.model, 0)).values()]
    target = len(fill_buckets(lengths[::-1], itemsize=FP64))
    for number, report in enumerate(mine, start=1):
        if case.look and (got := report.more["calls"]) > target:
            text = f"values right, but {got} all-reduces of gradients in step {number}, target {target}"
            return f"{text}: only the last micro-batch's backward may average"
    return None


hunt = partial(hunt_exercise, batches=_batches, probe=_attempt, wrong=_wrong, warm_up=import_optimizers, left=_left)
