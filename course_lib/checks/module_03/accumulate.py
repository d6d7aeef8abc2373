"""03.7: micro-batches whose gradients add up on each rank before they are averaged once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks.kit import models
from course_lib.checks.kit.gradients import agree
from course_lib.checks.kit.models import Kind
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.scene import Report, Scene
from course_lib.checks.kit.spec import FP32, Level
from course_lib.checks.kit.step import Words, causes_of_averages, step_exercise
from course_lib.comm.ledger import Ledger
from course_lib.costs.comm.ddp import fill_buckets
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.training.batches import Batch
from course_lib.units import MiB
from course_lib.verify import ratios

BUCKET_BYTES = 100  # so that these small models have several


@dataclass(frozen=True, kw_only=True)
class Accumulation:
    """Rows of each micro-batch, the same on all ranks."""

    world_size: int
    rows: tuple[int, ...]
    model: Kind = "gelu"
    look: bool = False

    def __str__(self) -> str:
        rows = ", ".join(map(str, self.rows))
        ranks = plural(self.world_size, "rank")
        return f"{ranks}, micro-batches of {rows} rows, {models.WORDS[self.model]}"


@dataclass(frozen=True, kw_only=True)
class _Accumulated(Scene):
    """The step, and a plain backward on the first micro-batch after it."""

    batches: list[list[Batch]]  # by rank the micro-batches

    def after(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Whether gradients are still averaged."""
        model, parts = arguments
        model.zero_grad()
        F.cross_entropy(model(parts[0][0]), parts[0][1]).backward()
        return models.gradients(model.module)


def _scene(case: Accumulation, seed: int) -> _Accumulated:
    """Random rows and classes."""
    model = models.build(case.model, seed)
    generator = torch.Generator().manual_seed(seed * 1009 + sum(case.rows) * 10 + case.world_size)
    batches = [[models.rows_of(rows, generator) for rows in case.rows] for _ in range(case.world_size)]
    return _Accumulated(
        parts=[model] * case.world_size,
        arguments=lambda model, rank: (DistributedDataParallel(model, bucket_cap_mb=BUCKET_BYTES / MiB), batches[rank]),
        loss=partial(_loss, model, batches),
        rows=max(case.rows),
        held=1,
        share=sum(case.rows),
        batches=batches,
    )


def _loss(model: nn.Module, batches: list[list[Batch]]) -> Tensor:
    """The mean over all rows of all ranks."""
    inputs, targets = (torch.cat(x) for x in zip(*(part for mine in batches for part in mine), strict=True))
    return F.cross_entropy(model(inputs), targets)


def _accumulated(
    model: DistributedDataParallel,
    parts: list[Batch],
    *,
    weight: Callable[[int, list[int]], float] = lambda mine, rows: mine / sum(rows),
    quiet: Callable[[int], int] = lambda many: many - 1,
    between: Callable[[nn.Module], None] = lambda model: None,
) -> None:
    """Right, unless a part is chosen otherwise: so many of the parts under no_sync."""
    rows = [len(targets) for _, targets in parts]
    for number, (inputs, targets) in enumerate(parts):
        between(model)
        with model.no_sync() if number < quiet(len(parts)) else nullcontext():
            (F.cross_entropy(model(inputs), targets) * weight(len(targets), rows)).backward()


def _no_longer_averaged(case: Accumulation, given: _Accumulated, reports: Sequence[Report]) -> str | None:
    later = {(rank, name): x for rank, report in enumerate(reports) for name, x in report.more.items()}
    first = partial(_loss, given.parts[0], [mine[:1] for mine in given.batches])
    if agree(later, given.on_one_device(first)[0]):
        return None
    return "right gradients, but the next backward is not averaged any more: no_sync was never left"


def _wrong_calls(case: Accumulation, given: Scene, reports: Sequence[Report], book: Ledger) -> str | None:
    lengths = [p.numel() for p in models.trained(given.parts[0]).values()]
    target = len(fill_buckets(lengths[::-1], bucket_bytes=BUCKET_BYTES, itemsize=FP32))
    got = len({event.call for event in book.events if event.operation == "all_reduce"})
    if got == target or case.world_size == 1:
        return None
    text = f"values right, but {got} all-reduces, {ratios.times(got / target)} the target of {target}"
    every = f"; every one of the {len(case.rows)} micro-batches is averaged"
    forward = "; a backward averages if its *forward* ran outside no_sync"
    return f"{text}{every if got == target * len(case.rows) else ''}{forward}"


_ACCUMULATE = step_exercise(
    key="03.7",
    title="accumulate, then average once",
    scene=_scene,
    slips={
        "every rank still has the gradient of its own share: was no_sync left before the last micro-batch's forward?": (
            partial(_accumulated, quiet=lambda many: many)
        ),
        "every rank has the sum over its own micro-batches: nothing was averaged, and no loss was divided": (
            partial(_accumulated, quiet=lambda many: many, weight=lambda mine, rows: 1)
        ),
        "these are the gradients of the mean of the micro-batches' means: a row of the short one weighs more": (
            partial(_accumulated, weight=lambda mine, rows: 1 / len(rows))
        ),
        "only the last micro-batch counts: were the gradients set to zero in between?": (
            partial(_accumulated, between=nn.Module.zero_grad)
        ),
        "only the last micro-batch counts, by its own mean: were the gradients set to zero in between?": (
            partial(_accumulated, between=nn.Module.zero_grad, weight=lambda mine, rows: 1)
        ),
    },
    causes=causes_of_averages(lambda case: len(case.rows)),
    also=_no_longer_averaged,
    look=_wrong_calls,
    words=Words(
        too_much="the batch does not fit, that is why it comes in parts; each has its own forward and backward"
    ),
    levels={
        "values": Level(
            points=2,
            cases=(Accumulation(world_size=2, rows=(4, 4, 4)), Accumulation(world_size=4, rows=(2, 2), model="mlp")),
            praise="the gradient of the mean over all rows of all ranks",
        ),
        "calls": Level(
            points=2,
            cases=(
                Accumulation(world_size=2, rows=(2, 2, 2, 2), model="deep", look=True),
                Accumulation(world_size=3, rows=(3, 3, 3), model="tied", look=True),
            ),
            praise="one all-reduce for each bucket, however many micro-batches",
        ),
        "edges": Level(
            points=1,
            again=True,
            cases=(
                Accumulation(world_size=2, rows=(4, 4, 1), look=True),
                Accumulation(world_size=3, rows=(5,), look=True),
                Accumulation(world_size=2, rows=(3, 2), model="frozen", look=True),
                Accumulation(world_size=1, rows=(3, 1), look=True),
            ),
            praise="right with a short last micro-batch, with a single one, frozen weights, and on one rank",
        ),
    },
    hints=(
        "backward() *adds* to .grad. So let the gradients of the micro-batches add up, and do not set them to zero "
        "in between.",
        "Each row must count as one over all rows of this rank. F.cross_entropy gives the mean over a micro-batch, "
        "so multiply it by len(targets) / rows, where `rows` are those of all micro-batches together.",
        "Go through parts[:-1] under `with model.no_sync():`, with the forward *and* the backward in it. Then do "
        "the same with parts[-1] outside of it. Its backward averages everything that has been added up.",
    ),
)
