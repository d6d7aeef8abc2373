"""08.10: a trainer on pp x dp whose replicas average too early; the learner says what the ladder finds and mends it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit import models
from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.hunt import RATE, Given, hunt_exercise
from course_lib.checks.kit.mended import MendedStep, first_wrong, step_beside, trainers_ready
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.scene import in_dtype
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import Cause, possible
from course_lib.comm.call import count as calls_of
from course_lib.comm.ledger import Ledger
from course_lib.config import TrainConfig
from course_lib.training.trainer import Trainer

_LATER = "is something of the last step still counted?"
_CAUSES: tuple[Cause, ...] = (
    (lambda case: case.dp, "the sum over the replicas, where their average is asked for"),
    (lambda case: 1 / case.dp, "divided by the number of replicas twice?"),
)


@dataclass(frozen=True, kw_only=True)
class AverageHunt:
    """So many steps by SGD on pp x dp ranks; or what the learner found."""

    pp: int = 2
    dp: int = 2
    micro_batches: int = 4
    rows: int = 8
    steps: int = 2
    look: bool = False  # at the calls
    diagnosis: bool = False

    @property
    def world_size(self) -> int:
        """All ranks of the mesh."""
        return self.pp * self.dp

    def __str__(self) -> str:
        if self.diagnosis:
            return "diagnosis"
        sizes = f"pp {self.pp} x dp {self.dp}"
        return f"{sizes}, {plural(self.micro_batches, 'micro-batch')}, {plural(self.rows, 'row')}"


class _Report(NamedTuple):
    """One rank: the diagnosis, or its steps, how many tensors with gradients it has, and whether it averaged late."""

    diagnosis: Any
    steps: Sequence[MendedStep] = ()
    tensors: int = 0
    late: bool = False


def _attempt(answer: Callable[..., Any], given: Given) -> _Report:
    """Runs on a rank: `answer` is a class of trainers; beside it one device trains on the same batches."""
    case = given.case
    with in_dtype(torch.float64):
        model = models.build("gelu", given.seed, torch.float64)
        config = TrainConfig(learning_rate=RATE)
        alone = Trainer(copy.deepcopy(model), config)
        trainer = answer(model, config, case.pp, case.dp, case.micro_batches)
        if case.diagnosis:
            return _Report(trainer.diagnosis())
        late = _Late(trainer, case.micro_batches)
        steps = [step_beside(trainer, alone, batch) for batch in given.batches]
    return _Report(None, steps, len(trainer.local.parameters), late.seen)


class _Late:
    """Sees whether nobody has begun to average when the last gradient of a step has arrived."""

    def __init__(self, trainer: Trainer, micro_batches: int) -> None:
        self._group, self._whole = trainer.local.group("dp"), micro_batches * len(trainer.local.parameters)
        self._arrived, self._called, self.seen = 0, 0, False
        for parameter in trainer.local.parameters.values():
            parameter.register_hook(self._begin)
            parameter.register_post_accumulate_grad_hook(self._after)

    def _begin(self, gradient: Tensor) -> None:
        """Runs before the trainer's own hook: what a step calls before its first gradient comes is no average."""
        if not self._arrived:
            self._called = calls_of(self._group)

    def _after(self, parameter: Tensor) -> None:
        """Runs when the trainer's own hook has run."""
        self._arrived += 1
        if self._arrived == self._whole:
            self.seen |= calls_of(self._group) == self._called
            self._arrived = 0


def _wrong(given: Given, reports: Sequence[_Report], book: Ledger, levels: Mapping[str, Level]) -> str | None:
    case = given.case
    reason = first_wrong([report.steps for report in reports], possible(_CAUSES, case, levels), _LATER)
    if reason and case.dp > 1 and not book.of("all_reduce").events:
        reason += "; between the replicas nothing was all-reduced: is `average` ever called?"
    return reason or (_too_many_calls(case, reports, book) or _too_late(case, reports, book) if case.look else None)


def _too_late(case: AverageHunt, reports: Sequence[_Report], book: Ledger) -> str | None:
    """With one replica there is nothing to send."""
    if case.dp == 1:
        return None
    if not book.of("all_reduce").events:
        return "right gradients, but nothing is in the ledger: average by comm, as self.average does"
    for rank, report in enumerate(reports):
        if report.late:
            found = f"right gradients, but rank {rank} averages nothing before its last backward is over"
            return f"{found}: average in `arrived`, and the rest of the pipeline hides some of it"
    return None


def _too_many_calls(case: AverageHunt, reports: Sequence[_Report], book: Ledger) -> str | None:
    """One all-reduce for each tensor and step."""
    for rank, report in enumerate(reports):
        mine = {event.call for event in book.of("all_reduce").events if event.rank == rank}
        calls = len(mine) / case.steps
        if calls > report.tensors:
            found = f"right gradients, but rank {rank} makes {calls:g} all-reduces in a step, target {report.tensors}"
            return f"{found}: average each tensor once, when all {case.micro_batches} micro-batches are in it"
    return None


_TOO_EARLY = hunt_exercise(
    key="08.10",
    title="find the bug: replicas that drift apart",
    answer=Diagnosis(
        rung="gradients",
        number=1,
        name="the number of micro-batches whose gradients are averaged",
        way_out="when is `average` called, and how many backwards are still to come then?",
    ),
    probe=_attempt,
    wrong=_wrong,
    warm_up=partial(trainers_ready, "techniques", "pipeline_engine"),
    levels={
        "diagnosis": Level(
            points=1,
            cases=(AverageHunt(diagnosis=True),),
            alone=True,
            praise="one of four: what the other three leave stays on its own replica",
        ),
        "steps": Level(
            points=2,
            again=True,
            cases=(AverageHunt(), AverageHunt(pp=1, micro_batches=3, rows=9)),
            praise="one device's gradients, step after step: all micro-batches are in before replicas average",
        ),
        "calls": Level(
            points=1,
            cases=(AverageHunt(look=True),),
            praise="and each tensor travels once a step, before the step is over",
        ),
        "edges": Level(
            points=1,
            cases=(
                AverageHunt(pp=1, micro_batches=1, look=True),
                AverageHunt(dp=1, micro_batches=2),
                AverageHunt(pp=1, dp=3, rows=7, micro_batches=2),
            ),
            praise="also with one micro-batch, with one replica, and on three",
        ),
    },
    hints=(
        "climb(Suspect) names the rung. apart(Suspect) says that two replicas of one stage differ after a few steps: "
        "something that they have to share stays with one of them.",
        "`arrived` is called each time when a backward has added to a gradient. How often does that happen in a step "
        "of four micro-batches, and at which of these times does it average?",
        "Average at the last of them: count the arrivals of each name, and compare with self.micro_batches.",
        "A step ends, and the next one counts anew. Set the count back to 0 when you have averaged, or clear it in "
        "compute_gradients.",
    ),
)
