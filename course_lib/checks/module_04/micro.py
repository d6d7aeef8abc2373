"""04.9: GPipe on two ranks, whose micro-batches' losses are differentiated without their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.checks.kit.parts import Gradients, Guess, gradients_on, wrong_traffic
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.stages import FP32, Report, attempt_on, wrong_step
from course_lib.checks.module_04.halves import build, gradients_of_halves, half_of, rows_of, sizes_of_terms
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import received_before
from course_lib.training.batches import Batch

WIDTH = 4


@dataclass(frozen=True, kw_only=True)
class Micro:
    """The rows of each micro-batch."""

    rows: tuple[int, ...]
    look_at_messages: bool = False
    world_size: int = 2

    def __str__(self) -> str:
        many = len(self.rows)
        return f"{many} micro-batch{'es' * (many > 1)} of {', '.join(map(str, self.rows))} rows"


class Given(NamedTuple):
    """The seed of the model, and the micro-batches."""

    seed: int
    parts: list[Batch]


def draw(case: Micro, seed: int) -> Given:
    """The same on both ranks."""
    return Given(seed + 1, [rows_of(rows, seed * 1009 + 100 * number + rows) for number, rows in enumerate(case.rows)])


def attempt(function: Callable[..., Any], given: Given) -> Report:
    """Runs on a rank."""
    half = half_of(build(WIDTH, given.seed), dist.get_rank())
    return attempt_on(half, lambda: function(half, given.parts, WIDTH))


def verdict(case: Micro, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Gradients and loss, then messages."""
    rows, m = sum(case.rows), len(case.rows)
    want, loss = _weighed(given, [len(targets) / rows for _, targets in given.parts])
    inputs, targets = zip(*given.parts, strict=True)
    sizes = sizes_of_terms(WIDTH, given.seed, (torch.cat(inputs), torch.cat(targets)))
    reason = wrong_step(reports, want, loss, book, guesses=_guesses(case, given), causes=_causes(case), sizes=sizes)
    if reason is None and case.look_at_messages:
        one_way = (m, FP32 * rows * WIDTH)
        reason = wrong_traffic(book, [[(0, 0), one_way], [one_way, (0, 0)]], "each micro-batch passes once each way")
        reason = reason or _runs_empty(book)
    return f"{case}: {reason}" if reason else None


def _runs_empty(book: Ledger) -> str | None:
    """None if rank 0 always sends the next micro-batch before the gradients of all earlier ones are back."""
    sends = [event for event in book.events if event.kind == "send" and event.rank == 0]
    late = [number for number in range(1, len(sends)) if received_before(sends[number], book.events) >= number]
    if not late:
        return None
    how = "one micro-batch after the other" if len(late) == len(sends) - 1 else "the pipeline runs empty"
    when = f"rank 0 sends number {late[0]} only when the gradients of all before it are back"
    return f"values right, but {how}: {when}, and rank 1 waits meanwhile"


def _causes(case: Micro) -> list[tuple[float, str]]:
    m, rows = len(case.rows), sum(case.rows)
    causes = [
        (m / 4, f"divided by 4? Here there are {m} micro-batches"),
        (rows / 8, f"divided by 8? Here there are {rows} rows"),
        (m, "was the loss divided? What makes it the mean over all rows?"),
        (1 / m, "was the loss divided twice, on the way back once more?"),
        (rows, "was the loss summed over the rows, and never divided?"),
        (m / rows, "was a mean over a micro-batch's rows divided by all rows? It is divided by its own already"),
        (rows / m, "was the loss summed over a micro-batch's rows, and divided by their number alone?"),
    ]
    return [(ratio, text) for ratio, text in causes if ratio != 1]


def _weighed(given: Given, weights: list[float]) -> tuple[Gradients, float]:
    """Gradients and value of the micro-batches' means, so weighed, on one device."""
    model: nn.Module = build(WIDTH, given.seed)
    total = 0.0
    for (inputs, targets), weight in zip(given.parts, weights, strict=True):
        loss = F.cross_entropy(model(inputs), targets) * weight
        loss.backward()
        total += loss.item()
    return gradients_of_halves(model), total


def _guesses(case: Micro, given: Given) -> list[Guess]:
    rows, m = sum(case.rows), len(case.rows)
    if m == 1:
        return []
    last = [0.0] * (m - 1)
    guesses = [
        (
            _weighed(given, [*last, weight])[0],
            "only the last micro-batch counts: were the gradients set to zero in between?",
        )
        for weight in (1.0, case.rows[-1] / rows)
    ]
    for total in (rows, rows - case.rows[-1]):
        weights = [number / total for number in case.rows[:-1]]
        guesses.append((_weighed(given, [*weights, 0.0])[0], "the last micro-batch is left out"))
    if len(set(case.rows)) == 1:
        text = "the gradients come back in another order than rank 0 takes them: each y needs that of its own rows"
        guesses.append((_crossed(given), text))
    else:
        short = case.rows.index(min(case.rows))
        text = f"the mean of the micro-batches' means: a row of number {short}, the short one, weighs more"
        guesses.append((_weighed(given, [1 / m] * m)[0], f"these are the gradients of {text}"))
        text = f"each micro-batch's mean is weighed by {case.rows[0]}/{rows}, as if all had the rows of the first one"
        guesses.append((_weighed(given, [case.rows[0] / rows] * m)[0], text))
        text = "these are the gradients of the sum of the micro-batches' means: was the loss divided by anything?"
        guesses.append((_weighed(given, [1.0] * m)[0], text))
    return guesses


def _crossed(given: Given) -> Gradients:
    """Rank 0's gradients, if what comes back for the last micro-batch is taken for the first one."""
    model, rows = build(WIDTH, given.seed), sum(len(targets) for _, targets in given.parts)
    first, second = half_of(model, 0), half_of(model, 1)
    outputs = [first(inputs) for inputs, _ in given.parts]
    arrived = [y.detach().requires_grad_() for y in outputs]
    for x, (_, targets) in zip(arrived, given.parts, strict=True):
        (F.cross_entropy(second(x), targets) * len(targets) / rows).backward()
    for y, x in zip(outputs, reversed(arrived), strict=True):
        y.backward(x.grad)
    return gradients_on(0, first)


NOT_DIVIDED = ProbeExercise(
    key="04.9",
    title="find the bug: a loss that looks right",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
    levels={
        "gradients": Level(
            points=2, cases=(Micro(rows=(2, 2, 2, 2)), Micro(rows=(3, 3))), praise="the gradients of one device"
        ),
        "uneven": Level(
            points=2,
            cases=(Micro(rows=(4, 4, 1)), Micro(rows=(1, 2, 3, 4)), Micro(rows=(5,))),
            praise="each row counts the same, in whichever micro-batch it is",
        ),
        "messages": Level(
            points=1,
            cases=(Micro(rows=(2, 2, 2, 2), look_at_messages=True), Micro(rows=(4, 1), look_at_messages=True)),
            praise="one message for each micro-batch and direction, as before",
        ),
    },
    hints=(
        "What is returned is right. So look at what is *differentiated*: run both on one batch with SGD in place of "
        "AdamW, or print the ratio of a gradient to one device's.",
        "backward() adds to .grad. The gradients of four means were added up; what is the gradient of one mean of all?",
        "Weigh each micro-batch's mean by its rows over all rows: (y * len(x) / total).backward(). "
        "Rank 0 gets the weight with the gradient that comes back.",
    ),
)
