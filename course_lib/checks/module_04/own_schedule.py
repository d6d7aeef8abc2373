"""04.11: torch.distributed.pipelining: each process's own stage, micro-batches with few targets, and a schedule."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors, wrong_tensors
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_04.own_stages import numbers, untouched_stages, wrong_messages

WIDTHS = (6, 8, 12, 10, 14, 9, 16, 3)  # no two cuts have the same bytes
LAYERS = {2: (3, 4), 4: (2, 1, 3, 1)}
MICRO_BATCHES, ROWS, STEPS = 8, 24, 3
_NO_TARGET = -100

_Weigh = Callable[[Tensor, int, int], Tensor]  # (the sum of a micro-batch's losses, its targets, those of the batch)


def _model() -> nn.Sequential:
    layers = [nn.Sequential(nn.Linear(before, after), nn.Tanh()) for before, after in pairwise(WIDTHS)]
    return nn.Sequential(*layers).double()


def _task(case: Start, seed: int) -> dict[str, Any]:
    """Of the three rows of a micro-batch, one, two or all have a target, so its mean is not its share.

    On four processes some have none: what they add is 0, and they go backward like the others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 53)
        weights = _model().state_dict()
        batches = [(torch.randn(ROWS, WIDTHS[0]).double(), torch.randint(WIDTHS[-1], (ROWS,))) for _ in range(STEPS)]
    for number, (_, y) in enumerate(batches):
        for micro, few in enumerate(y.chunk(MICRO_BATCHES)):
            targets = micro * (number + 1) % 4 if case.world_size == 4 else 1 + (micro + number) % 3
            few[targets:] = _NO_TARGET
    optimizer, rate = ("AdamW", 0.01) if case.look == "1F1B" else ("SGD", 0.5)
    return {
        "widths": list(WIDTHS),
        "layers": list(LAYERS[case.world_size]),
        "weights": weights,
        "batches": batches,
        "micro_batches": MICRO_BATCHES,
        "schedule": case.look,
        "optimizer": optimizer,
        "rate": rate,
    }


def _right(total: Tensor, own: int, batch: int) -> Tensor:
    return total / batch


_WRONG: dict[str, tuple[_Weigh, bool]] = {  # what is said of it, the weight of a micro-batch, and whether grads stay
    "each micro-batch has its own mean, so a row counts more where few have a target; divide by the targets of the "
    "whole batch": (lambda total, own, batch: total / own / MICRO_BATCHES, False),
    "too large: the micro-batches' means are added up and not averaged, and each is over its own targets": (
        lambda total, own, batch: total / own,
        False,
    ),
    "too small by the number of micro-batches: the schedule divides by it as well, unless scale_grads=False": (
        lambda total, own, batch: total / batch / MICRO_BATCHES,
        False,
    ),
    "the losses are added up, and divided by the number of micro-batches instead of that of the targets": (
        lambda total, own, batch: total / MICRO_BATCHES,
        False,
    ),
    "the losses are added up and not divided by the number of targets": (lambda total, own, batch: total, False),
    "divided by all rows of the batch, also by those without a target": (lambda total, own, batch: total / ROWS, False),
    "divided by all rows of a micro-batch and by the micro-batches' number, so rows without a target count in": (
        lambda total, own, batch: total / ROWS / MICRO_BATCHES,
        False,
    ),
    "a step's gradients are added to those of the step before": (_right, True),
}


def _trained(task: dict[str, Any], weigh: _Weigh, stays: bool = False) -> Tensors:
    """The same training in one process."""
    model = _model()
    model.load_state_dict(task["weights"])
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    for x, y in task["batches"]:
        if not stays:
            optimizer.zero_grad()
        for rows, targets in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True):
            total = F.cross_entropy(model(rows), targets, ignore_index=_NO_TARGET, reduction="sum")
            weigh(total, max(1, int((targets >= 0).sum())), int((y >= 0).sum())).backward()
        optimizer.step()
    return model.state_dict()


def _verdict(case: Start, ran: Ran) -> str | None:
    """Weights after all steps, then the messages at each cut, then their order."""
    found, task = ran.saved("answer.pt"), dict(ran.task)
    want = _trained(task, _right)
    instead = {sentence: _trained(task, *wrong) for sentence, wrong in _WRONG.items()}
    first = int((task["batches"][0][1] >= 0).sum())
    same = "each batch is divided by the number of the first batch's targets: when does your loss function learn it?"
    instead[same] = _trained(task, lambda total, own, batch: total / first)
    reason = wrong_tensors(found, want, start=task["weights"], instead=instead, tolerance=1e-9)
    if reason is not None:
        return untouched_stages(reason, found, task) or reason
    return wrong_messages(ran, MICRO_BATCHES) or _wrong_order(case, ran)


def _wrong_order(case: Start, ran: Ran) -> str | None:
    """How many micro-batches rank 0 has sent on at most and got no gradient of: all in GPipe, one a stage in 1F1B."""
    calls = numbers(ran.ended[0].calls)[: 2 * MICRO_BATCHES * STEPS]
    in_flight = max(accumulate(1 if call.operation == "send" else -1 for call in calls))
    wanted = MICRO_BATCHES if case.look == "GPipe" else case.world_size
    if in_flight == wanted:
        return None
    first = [call.operation for call in calls].index("recv")
    text = f"rank 0 sends {plural(first, 'micro-batch')} before it asks for the first gradient, {in_flight} in flight"
    return f"values and bytes right, but {text} at most; {case.look} has {wanted}"


_SCHEDULE = ScriptExercise(
    key="04.11",
    title="your own stages under PyTorch's schedules",
    task=_task,
    verdict=_verdict,
    levels={
        "gpipe": Level(
            points=3,
            cases=(Start(world_size=2, look="GPipe"), Start(world_size=4, look="GPipe")),
            praise="GPipe on 2 and on 4 processes ends at one device's weights, with each cut's bytes",
        ),
        "1f1b": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="1F1B"),),
            praise="and 1F1B with AdamW does, with no more micro-batches in flight than stages",
        ),
    },
    errors={
        "does not require grad": "a micro-batch without any target goes backward as well. A sum over no rows, made of "
        "the output, is 0 and still has a history",
    },
    hints=(
        "Build the whole model, load its weights, and cut your layers out: model[3:7] is a Sequential again, and its "
        "names stay 3, 4, 5 and 6. A list of sums of task['layers'] tells where each stage begins.",
        "schedule.step is called by all processes: step(x) by the first, step(target=y) by the last, step() by those "
        "between. Which of them needs loss_fn? It is called with the output and the targets of one micro-batch.",
        "A micro-batch does not know how many targets the batch has. But your script does, before it calls step: a "
        "closure, or a gradient that is divided once before the optimizer's step. Then look what scale_grads does.",
        "dist.gather_object(stage.state_dict(), parts) brings all stages' dicts to rank 0, where parts is a list of "
        "None and on the others None. Their names differ, so one dict can hold them all.",
    ),
)
