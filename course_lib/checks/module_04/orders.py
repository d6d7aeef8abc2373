"""04.4 and 04.5: the order in which one rank computes, on its list alone and then on real ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from course_lib.checks.kit import models
from course_lib.checks.kit.formula import watched
from course_lib.checks.kit.gradients import agree, differing, malformed
from course_lib.checks.kit.models import Tensors
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import by_the_library, import_optimizers, plural
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import TOO_EARLY
from course_lib.checks.module_04 import lists
from course_lib.comm.ledger import Ledger
from course_lib.config import TrainConfig
from course_lib.costs.comm.pipeline import pipeline_in_flight
from course_lib.parallel.table.mesh import make_mesh
from course_lib.schedules.messages import add_messages
from course_lib.training import step as steps
from course_lib.training.batches import Batch
from course_lib.training.pipeline_engine import PipelineEngine
from course_lib.training.techniques import stages
from course_lib.training.trainer import Trainer

SIZES = {1: (7,), 2: (4, 3), 3: (3, 2, 2)}  # of the four layers and their activations, by ranks


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """One pipeline, of lists that are looked at, or one that trains."""

    p: int
    m: int
    trains: bool = False

    @property
    def world_size(self) -> int:
        return self.p if self.trains else 1

    def __str__(self) -> str:
        verb = "training on " if self.trains else ""
        return f"{verb}{plural(self.p, 'rank')}, {self.m} micro-batch{'es' * (self.m > 1)}"


class _Given(NamedTuple):
    """The pipeline, and a batch for it."""

    case: Sizes
    seed: int
    batch: Batch


class _Report(NamedTuple):
    """What the answer wrote, the library's function that it called, and what training with it gave."""

    written: lists.Written
    library: str
    gradients: Tensors
    held: int


def _draw(case: Sizes, seed: int) -> _Given:
    """Two rows in each micro-batch."""
    generator = torch.Generator().manual_seed(seed * 1009 + 10 * case.p + case.m)
    inputs = torch.randn(2 * case.m, models.IN, generator=generator, dtype=torch.float64)
    return _Given(case, seed + 1, (inputs, torch.randint(models.OUT, (2 * case.m,), generator=generator)))


def _attempt(function: Callable[..., Any], given: _Given) -> _Report:
    """Runs on a rank: on one, the lists of all ranks are written; on several, each writes them and trains."""
    case = given.case
    written, library = watched(partial(lists.write, function), (case.p, case.m))
    if not case.trains or lists.not_legal(written, case.m):
        return _Report(written, library, {}, 0)
    model = models.build("deep", given.seed, torch.float64)
    schedule = add_messages(lists.schedule_of(written.lists, case.m))
    technique = stages(schedule, sizes=SIZES[case.p])
    trainer = Trainer(model, TrainConfig(), mesh=make_mesh(pp=case.p), apply=(technique,))
    trainer.compute_gradients(given.batch)
    assert isinstance(trainer.engine, PipelineEngine)
    pipeline = trainer.engine.pipeline
    return _Report(written, library, trainer.gradients(), pipeline.held.in_flight)


def _verdict(name: str, case: Sizes, given: _Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """The lists, then bubble and memory, then what was trained."""
    written, library = reports[0].written, reports[0].library
    reason = lists.not_legal(written, case.m) or lists.too_costly(name, written.lists, case.m)
    reason = reason or by_the_library(library)
    if reason is None and any(report.written != written for report in reports):
        reason = "the ranks do not agree on the lists: they may depend on rank, p and m alone"
    if reason is None and case.trains:
        reason = _wrong_training(name, given, reports)
    return f"{case}: {reason}" if reason else None


def _wrong_training(name: str, given: _Given, reports: tuple[Any, ...]) -> str | None:
    model, case = models.build("deep", given.seed, torch.float64), given.case
    steps.compute_gradients(model, given.batch)
    want = {(rank, name): x for rank in range(case.p) for name, x in models.gradients(model).items()}
    got = {(rank, name): x for rank, report in enumerate(reports) for name, x in report.gradients.items()}
    if not agree(got, want):
        return malformed(got, want, TOO_EARLY) or differing(got, want, (), {})
    for rank, report in enumerate(reports):
        if report.held != (held := pipeline_in_flight(name, n_ranks=case.p, n_microbatches=case.m, rank=rank)):
            return f"rank {rank} held {report.held} activations, its list says {held}"
    return None


def _warm_up() -> None:
    """Runs on a rank: on one, lists are written and nothing is trained."""
    if dist.get_world_size() > 1:
        import_optimizers()


def _other_sizes(seed: int) -> tuple[Sizes, ...]:
    """Four that no other level asks for: fewer micro-batches than ranks, as many, and more."""
    dice = random.Random(f"sizes {seed}")
    ranks = dice.sample(range(5, 13), 4)
    counts = (dice.randint(2, 4), ranks[1], ranks[2] + dice.randint(1, 4), dice.randint(13, 20))
    return tuple(Sizes(p=p, m=m) for p, m in zip(ranks, counts, strict=True))


_GPIPE = ProbeExercise(
    key="04.4",
    title="GPipe's order",
    inputs=_draw,
    probe=_attempt,
    verdict=partial(_verdict, "gpipe"),
    warm_up=_warm_up,
    levels={
        "lists": Level(
            points=1,
            cases=(Sizes(p=2, m=3), Sizes(p=4, m=8), Sizes(p=3, m=1), Sizes(p=1, m=2), Sizes(p=8, m=3)),
            praise="no deadlock, a bubble of (p-1)(F+B+W), and m activations on each rank",
        ),
        "any-size": Level(
            points=1,
            cases=(),
            drawn=_other_sizes,
            praise="and for numbers of ranks and micro-batches that nobody has told you",
        ),
        "training": Level(
            points=2,
            again=True,
            cases=(Sizes(p=2, m=4, trains=True), Sizes(p=3, m=2, trains=True)),
            praise="real ranks that follow your lists have the gradients of one device",
        ),
    },
    hints=(
        "Each rank has one stage, and the stage's number is the rank's. It computes m forwards and m backwards "
        "there, so its list has 2m entries.",
        "All forwards come first, Forward(rank, 0), Forward(rank, 1) and so on, and then the backwards. To see a "
        "schedule as a picture, give make_schedule('gpipe', 4, 8) to plot_schedule, which is in course_lib.viz.",
        "[Forward(rank, k) for k in range(m)] is one half of the list. The other half looks just like it.",
    ),
)

_ONE_F_ONE_B = ProbeExercise(
    key="04.5",
    title="1F1B's order",
    inputs=_draw,
    probe=_attempt,
    verdict=partial(_verdict, "1f1b"),
    warm_up=_warm_up,
    levels={
        "lists": Level(
            points=3,
            cases=(Sizes(p=3, m=5), Sizes(p=2, m=3), Sizes(p=4, m=8), Sizes(p=5, m=5)),
            praise="GPipe's bubble, and min(p - rank, m) activations in place of m",
        ),
        "edges": Level(
            points=1,
            cases=(Sizes(p=4, m=2), Sizes(p=8, m=3), Sizes(p=3, m=1), Sizes(p=1, m=4)),
            praise="right for fewer micro-batches than ranks, and on one rank",
        ),
        "training": Level(
            points=2,
            again=True,
            cases=(Sizes(p=3, m=5, trains=True), Sizes(p=2, m=4, trains=True), Sizes(p=3, m=2, trains=True)),
            praise="real ranks that follow your lists have the gradients of one device, and held no more",
        ),
    },
    hints=(
        "Think of the last rank. As soon as it has done Forward(p-1, 0) it can do Backward(p-1, 0). So it takes "
        "turns from the start: F, B, F, B, ...",
        "Now think of the rank before it. Its first gradient comes one stage later, so it does one forward more "
        "before its first backward. How many more does a rank do that is p - rank - 1 stages away from the end?",
        "Begin with ahead = min(p - rank - 1, m) forwards. Then go through k = 0, 1, ..., m - 1: first "
        "Forward(rank, k + ahead), if there is such a micro-batch, and then Backward(rank, k).",
    ),
)
