"""How 06.9 and 06.10 are judged: units that the learner mended train beside one device, step by step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit import models
from course_lib.checks.kit.hunt import RATE, Given, Wrong, hunt_exercise
from course_lib.checks.kit.mended import MendedStep, first_wrong, step_beside
from course_lib.checks.kit.models import Kind
from course_lib.checks.kit.said import import_optimizers, plural
from course_lib.checks.kit.scene import in_dtype
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.kit.step import Cause, possible
from course_lib.checks.module_06.small import InUnits
from course_lib.comm.ledger import Ledger
from course_lib.config import TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.training.batches import Batch
from course_lib.training.trainer import Trainer

_OF_THE_TRAINER = 2  # all-gathers of a step: rows and targets, then losses
_LATER = "does each layer compute with the weights of this step?"
_EVALUATIONS = {"first": "after an evaluation", "before updates": "an evaluation between each backward and its update"}
_UNITS: Mapping[Kind, int] = {"gelu": 2, "deep": 4}


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """So many steps by SGD, with `rows` rows in each batch; or what the learner found."""

    world_size: int
    shards: int = 0  # 0: all ranks
    model: Kind = "gelu"
    rows: int = 8
    steps: int = 3
    micro_batches: int = 1
    evaluates: Literal["", "first", "before updates"] = ""  # first: before all steps, and never again
    diagnosis: bool = False
    look: bool = False  # at the calls, and at what is whole between steps

    def __str__(self) -> str:
        if self.diagnosis:
            return "diagnosis"
        parts = [plural(self.world_size, "rank"), models.WORDS[self.model], plural(self.rows, "row")]
        parts += [f"each row shared among {self.shards}"] * bool(self.shards)
        parts += [plural(self.micro_batches, "micro-batch")] * (self.micro_batches > 1)
        parts += [_EVALUATIONS[self.evaluates]] if self.evaluates else []
        return ", ".join(parts)


class Hunted(NamedTuple):
    """One rank: the diagnosis, or its steps, and which layers were whole after one of them."""

    diagnosis: Any
    steps: list[MendedStep]
    whole: list[str]


def step_by_step(
    causes: Sequence[Cause], gathers: Callable[[int], int] = lambda units: 2 * units, within: bool = False
) -> Wrong:
    """Judges units beside one device; `gathers` of the number of units are enough for a step.

    `within`: rows are reduced among the ranks that share them, and between copies a piece travels alone.
    """

    def wrong(given: Given, reports: Sequence[Hunted], book: Ledger, levels: Mapping[str, Level]) -> str | None:
        case = given.case
        reason = first_wrong([report.steps for report in reports], possible(causes, case, levels), _LATER)
        if reason and case.shards not in (0, case.world_size) and not book.of("all_reduce").events:
            reason += "; between the copies of a row nothing was all-reduced"
        if case.look and not reason:
            target = case.micro_batches * gathers(_UNITS[case.model])
            reason = _left_whole(reports) or _wrong_calls(case, book, target)
        return reason or (_too_many_bytes(case, given.seed, book) if within else None)

    return wrong


def _left_whole(reports: Sequence[Hunted]) -> str | None:
    for rank, report in enumerate(reports):
        if report.whole:
            return f"right gradients, but after backward {report.whole[0]} is still whole on rank {rank}"
    return None


def _wrong_calls(case: Hunt, book: Ledger, target: int) -> str | None:
    calls = len(book.of("all_gather").calls()) / case.steps - _OF_THE_TRAINER
    if case.world_size == 1 or calls == target:
        return None
    found = f"right gradients, but {calls:g} all-gathers of weights in a step, target {target}"
    if calls < target:
        return f"{found}: another unit than the last one stays whole between its forward and its backward"
    return f"{found}: the last unit need not be gathered again for backward, for nothing came in between"


def _too_many_bytes(case: Hunt, seed: int, book: Ledger) -> str | None:
    """For all gradients of a step: a ring reduce-scatter of each row, and a ring all-reduce of a piece among copies."""
    share = case.shards or case.world_size
    layers = models.build(case.model, seed, torch.float64).children()
    rows = [n for one in layers if (n := sum(p.numel() for p in one.parameters()))]
    asked = [("reduce_scatter", share, n) for n in rows]
    asked += [("all_reduce", case.world_size // share, -(-n // share)) for n in rows]
    costs = (comm_time(name, "ring", world_size=p, length=n, itemsize=FP64) for name, p, n in asked)
    target = case.steps * case.micro_batches * sum(max(cost.sent_bytes) for cost in costs)
    sent = [book.of(name) for name in ("reduce_scatter", "all_reduce")]
    got = max(sum(one.bytes_sent(rank) for one in sent) for rank in range(case.world_size))
    if got <= target:
        return None
    found = f"right gradients, but a rank sends {got} bytes for them in {plural(case.steps, 'step')}, target {target}"
    return f"{found}: reduce-scatter a row in `inside`, and all-reduce in `across` the piece alone"


def _warm_up() -> None:
    """Runs on a rank, outside the learner's time."""
    import_module("course_lib.checks.module_06.small")
    import_optimizers()


def _attempt(answer: Callable[..., Any], given: Given) -> Hunted:
    """Runs on a rank: `answer` is the class of units; beside it one device trains on the same batches."""
    case = given.case
    with in_dtype(torch.float64):
        model = models.build(case.model, given.seed, torch.float64)
        config = TrainConfig(learning_rate=RATE, accumulation=case.micro_batches)
        alone = Trainer(copy.deepcopy(model), TrainConfig(learning_rate=RATE))
        trainer = InUnits(answer, model, config, case.shards or None)
        if case.diagnosis:
            return Hunted(next(iter(trainer.units.values())).diagnosis(), [], [])  # type: ignore[attr-defined]
        steps, whole = [], []
        _evaluate(case, "first", trainer, given.batches[0])
        for batch in given.batches:
            evaluate = partial(_evaluate, case, "before updates", trainer, batch)
            steps.append(step_beside(trainer, alone, batch, before_update=evaluate))
            whole += [name for name, unit in trainer.units.items() if _is_whole(unit)]
    return Hunted(None, steps, whole)


def _evaluate(case: Hunt, when: str, trainer: Trainer, batch: Batch) -> None:
    if case.evaluates == when:
        trainer.output(batch[0])


def _is_whole(unit: Any) -> bool:
    row = getattr(unit, "row", None)
    return isinstance(row, Tensor) and row.untyped_storage().size() > 0


hunt = partial(hunt_exercise, probe=_attempt, warm_up=_warm_up)
