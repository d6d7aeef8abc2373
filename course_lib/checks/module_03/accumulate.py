"""03.7: micro-batches whose gradients add up on each rank before they are averaged once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.checks.kit import models
from course_lib.checks.kit.models import Kind, Tensors
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.replicas import Guess, all_same, causes_of, why_wrong
from course_lib.checks.kit.spec import Level
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.costs.comm.ddp import fill_buckets
from course_lib.parallel.ddp import DistributedDataParallel
from course_lib.training.batches import Batch
from course_lib.verify.ratios import times

Look = Literal["values", "calls"]
BUCKET_BYTES = 200  # so that these small models have several
FP64 = 8


@dataclass(frozen=True, kw_only=True)
class Accumulation:
    """Rows of each micro-batch, the same on all ranks."""

    world_size: int
    rows: tuple[int, ...]
    model: Kind = "gelu"
    look: Look = "values"

    def __str__(self) -> str:
        rows = ", ".join(map(str, self.rows))
        ranks = f"{self.world_size} rank{'s' * (self.world_size > 1)}"
        return f"{ranks}, micro-batches of {rows} rows, {models.WORDS[self.model]}"


class Given(NamedTuple):
    """The model, and by rank the micro-batches."""

    model: Kind
    seed: int
    parts: list[list[Batch]]


class Report(NamedTuple):
    """One rank's gradients, and those that a plain backward on the first micro-batch leaves afterwards."""

    gradients: Tensors
    later: Tensors


def draw(case: Accumulation, seed: int) -> Given:
    """Random rows and classes."""
    generator = torch.Generator().manual_seed(seed * 1009 + sum(case.rows) * 10 + case.world_size)
    parts = [
        [
            (
                torch.randn(rows, models.IN, generator=generator, dtype=torch.float64),
                torch.randint(models.OUT, (rows,), generator=generator),
            )
            for rows in case.rows
        ]
        for _ in range(case.world_size)
    ]
    return Given(case.model, seed, parts)


def attempt(function: Callable[..., Any], given: Given) -> Report:
    """Runs on a rank."""
    model = DistributedDataParallel(models.build(given.model, given.seed, torch.float64), bucket_bytes=BUCKET_BYTES)
    mine = given.parts[dist.get_rank()]
    ledger.clear()
    function(model, mine)
    found, seen = models.gradients(model.module), list(ledger.current())
    model.zero_grad()
    F.cross_entropy(model(mine[0][0]), mine[0][1]).backward()
    ledger.clear()
    ledger.current().extend(seen)
    return Report(found, models.gradients(model.module))


def verdict(case: Accumulation, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Gradients, then whether no_sync was left, then calls."""
    got = [report.gradients for report in reports]
    want = gradients_of(given, _whole(given.parts))
    reason = None if all_same(got, [want] * len(got)) else _wrong_gradients(case, given, got, want)
    if reason is None and case.world_size > 1:
        first = [parts[:1] for parts in given.parts]
        again = gradients_of(given, _whole(first))
        if not all_same([report.later for report in reports], [again] * len(reports)):
            reason = "right gradients, but the next backward is not averaged any more: no_sync was never left"
    if reason is None and case.look == "calls" and case.world_size > 1:
        reason = _wrong_calls(case, book)
    return f"{case}: {reason}" if reason else None


def _wrong_gradients(case: Accumulation, given: Given, got: Sequence[Tensors], want: Tensors) -> str | None:
    p, m = case.world_size, len(case.rows)
    own = [gradients_of(given, _whole([parts])) for parts in given.parts] if p > 1 else []
    sums = [gradients_of(given, _means([parts], 1)) for parts in given.parts] if p > 1 else []
    alone = "every rank still has the gradient of its own share"
    guesses: list[Guess] = [
        (own, f"{alone}: was no_sync left before the last micro-batch's forward?"),
        (sums, "every rank has the sum over its own micro-batches: nothing was averaged, and no loss was divided"),
    ]
    one_by_one = gradients_of(given, _means(given.parts, m * p))
    if len(set(case.rows)) > 1:
        short = "these are the gradients of the mean of the micro-batches' means: a row of the short one weighs more"
        guesses.append(([one_by_one] * p, short))
    last = gradients_of(given, _means([parts[-1:] for parts in given.parts], p))
    if m > 1:
        guesses.append(([last] * p, "only the last micro-batch counts: were the gradients set to zero in between?"))
    return why_wrong(got, want, guesses=[guess for guess in guesses if guess[0]], causes=causes_of(p, m))


def _wrong_calls(case: Accumulation, book: Ledger) -> str | None:
    lengths = [p.numel() for p in models.trained(models.build(case.model, 0)).values()]
    target = len(fill_buckets(lengths[::-1], bucket_bytes=BUCKET_BYTES, itemsize=FP64))
    got = len({event.call for event in book.events if event.operation == "all_reduce"})
    if got == target:
        return None
    text = f"values right, but {got} all-reduces, {times(got / target)} the target of {target}"
    every = f"; every one of the {len(case.rows)} micro-batches is averaged"
    forward = "; a backward averages if its *forward* ran outside no_sync"
    return f"{text}{every if got == target * len(case.rows) else ''}{forward}"


def _whole(parts: Sequence[Sequence[Batch]]) -> Callable[[nn.Module], torch.Tensor]:
    """The mean over all rows of these ranks."""
    batches = [batch for mine in parts for batch in mine]
    inputs, targets = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    return lambda model: F.cross_entropy(model(inputs), targets)


def _means(parts: Sequence[Sequence[Batch]], divisor: int) -> Callable[[nn.Module], torch.Tensor]:
    """The sum of the micro-batches' means, over `divisor`."""
    batches = [batch for mine in parts for batch in mine]
    return lambda model: sum((F.cross_entropy(model(x), y) for x, y in batches), torch.zeros(())) / divisor


def gradients_of(given: Given, loss_of: Callable[[nn.Module], torch.Tensor]) -> Tensors:
    """What a loss leaves behind on one device."""
    model = models.build(given.model, given.seed, torch.float64)
    loss_of(model).backward()
    return models.gradients(model)


ACCUMULATE = ProbeExercise(
    key="03.7",
    title="accumulate, then average once",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
    levels={
        "values": Level(
            points=2,
            cases=(Accumulation(world_size=2, rows=(4, 4, 4)), Accumulation(world_size=4, rows=(2, 2), model="mlp")),
            praise="the gradient of the mean over all rows of all ranks",
        ),
        "calls": Level(
            points=2,
            cases=(
                Accumulation(world_size=2, rows=(2, 2, 2, 2), model="deep", look="calls"),
                Accumulation(world_size=3, rows=(3, 3, 3), model="tied", look="calls"),
            ),
            praise="one all-reduce for each bucket, however many micro-batches",
        ),
        "edges": Level(
            points=1,
            cases=(
                Accumulation(world_size=2, rows=(4, 4, 1), look="calls"),
                Accumulation(world_size=3, rows=(5,), look="calls"),
                Accumulation(world_size=2, rows=(3, 2), model="frozen", look="calls"),
                Accumulation(world_size=1, rows=(3, 1), look="calls"),
            ),
            praise="right with a short last micro-batch, with a single one, frozen weights, and on one rank",
        ),
    },
    hints=(
        "backward() *adds* to .grad. Let the micro-batches add up, and do not set the gradients to zero in between.",
        "Each row must count as 1 / (all rows of this rank): weigh a micro-batch's mean loss by its rows over all "
        "rows. Equal micro-batches: divide by their number.",
        "All but the last go under `with model.no_sync():`, forward *and* backward. "
        "The last one's backward averages everything that has been added up.",
    ),
)
