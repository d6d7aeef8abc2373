"""04.9: GPipe on two ranks, whose micro-batches' losses are differentiated without their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import comm
from course_lib.checks.kit import models
from course_lib.checks.kit.scene import Report, Scene
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import ALL_ZEROS, Words, step_exercise
from course_lib.checks.module_04.halves import build, passes_once
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import received_before
from course_lib.parallel.pipelines.stages import cut
from course_lib.training.batches import Batch

WIDTH = 4
Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Micro:
    """The rows of each micro-batch."""

    rows: tuple[int, ...]
    look: bool = False
    world_size: int = 2

    def __str__(self) -> str:
        many = len(self.rows)
        return f"{many} micro-batch{'es' * (many > 1)} of {', '.join(map(str, self.rows))} rows"


def _scene(case: Micro, seed: int) -> Scene:
    """The same on both ranks."""
    model = build(WIDTH, seed + 1)
    generator = torch.Generator().manual_seed(seed * 1009 + sum(case.rows))
    parts = [models.rows_of(rows, generator) for rows in case.rows]
    inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return Scene(
        parts=cut(model, (2, 1)),
        arguments=lambda half, rank: (half, parts, WIDTH),
        loss=lambda: F.cross_entropy(model(inputs), targets),
        told=(1,),
    )


def gpipe(
    half: nn.Module,
    parts: Sequence[Batch],
    width: int,
    *,
    weight: Callable[[int, list[int]], float] = lambda mine, rows: mine / sum(rows),
    between: Callable[[nn.Module], None] = lambda half: None,
    order: Callable[[Pairs, int], Pairs] = lambda kept, rank: kept,
) -> float | None:
    """Right, unless a part is chosen otherwise."""
    rank, kept, rows = dist.get_rank(), [], [len(targets) for _, targets in parts]
    for inputs, targets in parts:
        if rank == 0:
            x, y = inputs, half(inputs)
            comm.send(y.detach(), 1)
        else:
            x = comm.recv(torch.empty(len(inputs), width), 0).requires_grad_()
            y = F.cross_entropy(half(x), targets) * weight(len(targets), rows)
        kept.append((x, y))
    for x, y in order(kept, rank):
        between(half)
        if rank == 0:
            y.backward(comm.recv(torch.empty_like(y), 1))
        else:
            y.backward()
            comm.send(x.grad, 0)  # type: ignore[arg-type]
    return sum(y.item() for _, y in kept) if rank == 1 else None


def crossed(kept: Pairs, rank: int) -> Pairs:
    """Rank 1 goes backward from the last one on, if no message shows by its length that it is another one's."""
    return kept[::-1] if rank and len({len(x) for x, _ in kept}) == 1 else kept


def _runs_empty(case: Micro, given: Scene, reports: Sequence[Report], book: Ledger) -> str | None:
    """None if rank 0 always sends the next micro-batch before the gradients of all earlier ones are back."""
    sends = [event for event in book.events if event.kind == "send" and event.rank == 0]
    late = [number for number in range(1, len(sends)) if received_before(sends[number], book.events) >= number]
    if not late:
        return None
    how = "one micro-batch after the other" if len(late) == len(sends) - 1 else "the pipeline runs empty"
    when = f"rank 0 sends number {late[0]} only when the gradients of all before it are back"
    return f"values right, but {how}: {when}, and rank 1 waits meanwhile"


_NOT_DIVIDED = step_exercise(
    key="04.9",
    title="find the bug: a loss that looks right",
    scene=_scene,
    slips={
        "only the last micro-batch counts: were the gradients set to zero in between?": partial(
            gpipe, between=nn.Module.zero_grad
        ),
        "only the last micro-batch counts, by its own mean: were the gradients set to zero in between?": partial(
            gpipe, between=nn.Module.zero_grad, weight=lambda mine, rows: 1
        ),
        "the last micro-batch is left out": lambda half, parts, width: gpipe(half, parts[:-1], width),
        "the last micro-batch is left out of backward": partial(gpipe, order=lambda kept, rank: kept[:-1]),
        lambda case, trial: (
            "these are the gradients of the mean of the micro-batches' means: "
            f"a row of number {case.rows.index(min(case.rows))}, the short one, weighs more"
        ): partial(gpipe, weight=lambda mine, rows: 1 / len(rows)),
        lambda case, trial: (
            f"each micro-batch's mean is weighed by {case.rows[0]}/{sum(case.rows)}, "
            "as if all had the rows of the first one"
        ): partial(gpipe, weight=lambda mine, rows: rows[0] / sum(rows)),
        "the gradients come back in another order than rank 0 takes them: each y needs that of its own rows": partial(
            gpipe, order=crossed
        ),
    },
    causes=(
        (lambda case: len(case.rows) / 4, lambda case: f"divided by 4? Here there are {len(case.rows)} micro-batches"),
        (lambda case: sum(case.rows) / 8, lambda case: f"divided by 8? Here there are {sum(case.rows)} rows"),
        (lambda case: len(case.rows), "was the loss divided? What makes it the mean over all rows?"),
        (lambda case: 1 / len(case.rows), "was the loss divided twice, on the way back once more?"),
        (lambda case: sum(case.rows), "was the loss summed over the rows, and never divided?"),
        (
            lambda case: len(case.rows) / sum(case.rows),
            "was a mean over a micro-batch's rows divided by all rows? It is divided by its own already",
        ),
        (
            lambda case: sum(case.rows) / len(case.rows),
            "was the loss summed over a micro-batch's rows, and divided by their number alone?",
        ),
        ALL_ZEROS,
    ),
    sent=lambda case: passes_once(len(case.rows), sum(case.rows), WIDTH),
    look=_runs_empty,
    words=Words(
        means="comm.send and comm.recv, not torch.distributed's own", traffic="each micro-batch passes once each way"
    ),
    levels={
        "gradients": Level(
            points=2, cases=(Micro(rows=(2, 2, 2, 2)), Micro(rows=(3, 3))), praise="the gradients of one device"
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(Micro(rows=(4, 4, 1)), Micro(rows=(1, 2, 3, 4)), Micro(rows=(5,))),
            praise="each row counts the same, in whichever micro-batch it is",
        ),
        "messages": Level(
            points=1,
            cases=(Micro(rows=(2, 2, 2, 2), look=True), Micro(rows=(4, 1), look=True)),
            praise="one message for each micro-batch and direction, as before",
        ),
    },
    hints=(
        'The loss that is returned is right. So look at what is *differentiated*: let compare(pipeline_step, "SGD") '
        "train without AdamW, or print the ratio of a gradient to one device's.",
        "backward() adds to .grad, so here the gradients of four means are added up. How much should each "
        "micro-batch's mean count, so that together they are the mean over all rows?",
        "Multiply each micro-batch's mean by its rows over all rows: y = F.cross_entropy(half(x), targets) * "
        "len(targets) / total. Rank 0 gets that factor with the gradient that comes back. And the loss is now just "
        "the sum of the y's.",
    ),
)
