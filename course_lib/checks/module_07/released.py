"""How 07.9 is judged: somebody else's trainer, whose gradients are read from its steps of SGD, beside one device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import comm
from course_lib.checks.kit import models
from course_lib.checks.kit.gradients import Place, agree
from course_lib.checks.kit.hunt import RATE, Given
from course_lib.checks.kit.mended import MendedStep, first_wrong
from course_lib.checks.kit.models import Kind
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.scene import in_dtype, number_or_type
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import Cause, possible
from course_lib.comm.ledger import Ledger
from course_lib.config import TrainConfig
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.training.batches import IGNORED, Batch
from course_lib.training.step import count_targets, micro_batches, summed_loss
from course_lib.training.trainer import Trainer, make_optimizer, share

PARTS = 2
_CAUSES: tuple[Cause, ...] = (
    (
        lambda case: 1 / case.world_size,
        "DDP's average divides by the number of ranks. Is a rank's loss multiplied by it before backward()?",
    ),
    (lambda case: case.world_size, "multiplied by the number of ranks too often? DDP's average takes it away once"),
)


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """A training by SGD: how many targets each rank has of its rows, in each step the same; or the diagnosis."""

    targets: tuple[int, ...]
    rows: int = 8
    steps: int = 2
    model: Kind = "gelu"
    diagnosis: bool = False

    @property
    def world_size(self) -> int:
        """All ranks."""
        return len(self.targets)

    def __str__(self) -> str:
        if self.diagnosis:
            return "diagnosis"
        counts = f"{', '.join(map(str, self.targets))} targets"
        return f"{plural(self.world_size, 'rank')} with {counts}, {self.rows} rows in all, {models.WORDS[self.model]}"


class Hunted(NamedTuple):
    """One rank: the diagnosis, or its steps."""

    diagnosis: Any
    steps: Sequence[MendedStep] = ()


def batches(case: Hunt, generator: torch.Generator) -> list[Batch]:
    """Each rank's first targets count, the others are masked."""
    found = []
    for _ in range(case.steps):
        inputs, targets = models.rows_of(case.rows, generator)
        for share_of_rank, count in zip(targets.tensor_split(case.world_size), case.targets, strict=True):
            share_of_rank[count:] = IGNORED
        found.append((inputs, targets))
    return found


def train(answer: Callable[..., Any], given: Given) -> Hunted:
    """Runs on a rank: `answer` is the class of a trainer."""
    model, config = models.build(given.case.model, given.seed, torch.float64), TrainConfig(learning_rate=RATE)
    alone = Trainer(copy.deepcopy(model), config)
    with in_dtype(torch.float64):
        trainer = answer(model, config)
        if given.case.diagnosis:
            return Hunted(trainer.diagnosis())
        return Hunted(None, [_step_beside(trainer, model, alone, batch) for batch in given.batches])


def _step_beside(trainer: Any, model: nn.Module, alone: Trainer, batch: Batch) -> MendedStep:
    """Both take a step. What the trainer's gradients were is what its weights moved by."""
    rank, before = dist.get_rank(), models.state(model)
    right = alone.compute_gradients(batch)
    want: dict[Place, Tensor | None] = {(rank, name): x.clone() for name, x in alone.gradients().items()}
    alone.update()
    loss, after = number_or_type(trainer.step(batch), tensors=True), models.state(model)
    got: dict[Place, Tensor | None] = {place: (before[place[1]] - after[place[1]]) / RATE for place in want}
    return MendedStep(got, want, loss, right)


def wrong(given: Given, reports: Sequence[Hunted], book: Ledger, levels: Mapping[str, Level]) -> str | None:
    """What is said of the first step that is not one device's."""
    return first_wrong([report.steps for report in reports], possible(_CAUSES, given.case, levels))


def left_behind(case: Hunt, given: Given, trial: Trial) -> Any:
    """The gradients of the first step, if they are wrong, and whether the loss is right."""
    first = [] if case.diagnosis else [report.steps[0] for report in trial.reports]
    if all(agree(step.got, step.want) for step in first):
        return None
    return [(step.got, not isinstance(step.loss, str) and isclose(step.loss, step.right_loss)) for step in first]


class Counts(NamedTuple):
    """What a rank knows of its targets and rows, and of all ranks' together."""

    mine: int
    all: int
    my_rows: int
    all_rows: int
    ranks: int


class Slip:
    """The trainer of 07.9, in which a target counts as much as `weight` says; the loss that it returns may be right."""

    right_loss = False

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.wrapped, self.optimizer = DistributedDataParallel(model), make_optimizer([*model.parameters()], config)

    def diagnosis(self) -> tuple[str, float]:
        """Right."""
        return "gradients", 3.0

    def weight(self, counts: Counts, part: Batch) -> float:
        """Of one target of this rank, before DDP averages: the mistake."""
        raise NotImplementedError

    def step(self, batch: Batch) -> float:
        """On this rank's share, part by part."""
        ranks, mine = dist.get_world_size(), share(batch, dist.get_rank(), dist.get_world_size())
        counts = Counts(count_targets(mine), count_targets(batch), len(mine[1]), len(batch[1]), ranks)
        self.optimizer.zero_grad()
        mean = torch.zeros(1)
        for part in micro_batches(mine, PARTS):
            summed = summed_loss(self.wrapped, part)
            (summed * self.weight(counts, part)).backward()
            mean += summed.detach() * (ranks / counts.all if self.right_loss else self.weight(counts, part))
        self.optimizer.step()
        return comm.all_reduce(mean).item() / ranks
