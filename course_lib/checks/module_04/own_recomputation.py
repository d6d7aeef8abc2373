"""04.12: a pipeline by plain send and recv, whose stages keep inputs alone and go forward again in backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_04.own_stages import bounds, numbers, untouched_stages, wrong_messages
from course_lib.ranks.saved import Saved
from course_lib.verify.ratios import times

WIDTHS = (6, 20, 16, 24, 18, 22, 14, 3)
LAYERS = {2: (3, 4), 4: (2, 1, 3, 1)}
MICRO_BATCHES, ROWS, STEPS = 8, 44, 3  # micro-batches of 6 and of 5 rows

_Weigh = Callable[[Tensor, int], Tensor]  # (the losses of a micro-batch's rows, the rows of the batch)


def _model(dropout: float) -> nn.Sequential:
    layers = [nn.Sequential(nn.Dropout(dropout), nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(WIDTHS)]
    return nn.Sequential(*layers).double()


def _task(case: Start, seed: int) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 71)
        weights = _model(0.0).state_dict()
        batches = [(torch.randn(ROWS, WIDTHS[0]).double(), torch.randint(WIDTHS[-1], (ROWS,))) for _ in range(STEPS)]
    dropout = case.look == "dropout"
    return {
        "widths": list(WIDTHS),
        "layers": list(LAYERS[case.world_size]),
        "weights": weights,
        "batches": batches,
        "micro_batches": MICRO_BATCHES,
        "dropout": 0.25 if dropout else 0.0,
        "seed": 97 * seed + 5,
        "optimizer": "AdamW" if dropout else "SGD",
        "rate": 0.01 if dropout else 0.5,
    }


class _Stages:
    """The stages of one model in one process, each with random numbers of its own, as on its own rank."""

    def __init__(self, task: dict[str, Any], *, alike: bool = False) -> None:
        self.model = _model(task["dropout"])
        self.model.load_state_dict(task["weights"])
        self.parts = [self.model[begin:end] for begin, end in bounds(task)]
        self._states = [
            torch.Generator().manual_seed(task["seed"] + rank * (not alike)) for rank in range(len(self.parts))
        ]

    def __call__(self, rank: int, x: Tensor) -> Tensor:
        """Forward on a rank; its next call draws what comes after."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._states[rank].get_state())
            y: Tensor = self.parts[rank](x)
            self._states[rank].set_state(torch.get_rng_state())
        return y


def _right(losses: Tensor, batch: int) -> Tensor:
    return losses.sum() / batch


def _trained(task: dict[str, Any], weigh: _Weigh = _right, *, alike: bool = False, stays: bool = False) -> Tensors:
    """The same training in one process, which remembers everything."""
    stages = _Stages(task, alike=alike)
    optimizer = getattr(torch.optim, task["optimizer"])(stages.model.parameters(), lr=task["rate"])
    for x, y in task["batches"]:
        if not stays:
            optimizer.zero_grad()
        for rows, targets in zip(x.tensor_split(MICRO_BATCHES), y.tensor_split(MICRO_BATCHES), strict=True):
            for rank in range(len(stages.parts)):
                rows = stages(rank, rows)
            weigh(F.cross_entropy(rows, targets, reduction="none"), len(x)).backward()
        optimizer.step()
    return stages.model.state_dict()


def _drawn_anew(task: dict[str, Any]) -> Tensors:
    """What it learns if second forwards draw numbers of their own, after the first ones of all micro-batches."""
    stages = _Stages(task)
    last = len(stages.parts) - 1
    optimizer = getattr(torch.optim, task["optimizer"])(stages.model.parameters(), lr=task["rate"])
    for x, y in task["batches"]:
        optimizer.zero_grad()
        inputs: list[Sequence[Tensor]] = [x.tensor_split(MICRO_BATCHES)]
        with torch.no_grad():
            for rank in range(last + 1):
                inputs.append([stages(rank, rows) for rows in inputs[rank]])
        for number, targets in enumerate(y.tensor_split(MICRO_BATCHES)):
            gradient: Tensor | None = None
            for rank in reversed(range(last + 1)):
                rows = inputs[rank][number].detach().requires_grad_()
                out = stages(rank, rows)
                out = F.cross_entropy(out, targets, reduction="sum") / len(x) if rank == last else out
                out.backward(gradient)
                gradient = rows.grad
        optimizer.step()
    return stages.model.state_dict()


_WRONG: dict[str, _Weigh] = {
    "each micro-batch has its own mean, so a row counts more in a short one; divide by the rows of the whole batch": (
        lambda losses, batch: losses.mean() / MICRO_BATCHES
    ),
    "the micro-batches' means are added up and not averaged": lambda losses, batch: losses.mean(),
    "the losses are added up and not divided by the rows of the batch": lambda losses, batch: losses.sum(),
    "too small by the number of micro-batches: it is divided by the rows of the batch, which is enough": (
        lambda losses, batch: losses.sum() / batch / MICRO_BATCHES
    ),
}


def _verdict(case: Start, ran: Ran) -> str | None:
    """Weights after all steps, then messages, then their order, then what was remembered."""
    found, task = ran.saved("answer.pt"), dict(ran.task)
    want = _trained(task)
    instead = {sentence: _trained(task, weigh) for sentence, weigh in _WRONG.items()}
    instead["a step's gradients are added to those of the step before"] = _trained(task, stays=True)
    if task["dropout"]:
        instead |= {
            "the second forward of a micro-batch draws other masks than the first: keep torch.get_rng_state() with the "
            "input": _drawn_anew(task),
            "nothing is dropped: are the layers in eval(), or was the model built without task['dropout']?": _trained(
                task | {"dropout": 0.0}
            ),
            "all ranks draw the same numbers: add the rank to the seed": _trained(task, alike=True),
        }
    reason = wrong_tensors(found, want, start=task["weights"], instead=instead, tolerance=1e-9)
    if reason is None:
        return wrong_messages(ran, MICRO_BATCHES) or _not_overlapped(ran) or _remembered(ran)
    if task["dropout"] and reason.endswith("at the end"):
        what = "which numbers does its seed start, and what does the second forward draw?"
        return f"{reason}; without dropout the weights were right, so look at the masks: {what}"
    return untouched_stages(reason, found, task) or reason


def _not_overlapped(ran: Ran) -> str | None:
    """Rank 0 must not wait for a gradient before every stage has got a micro-batch."""
    first = [call.operation for call in numbers(ran.ended[0].calls)].index("recv")
    if first >= len(ran.ended):
        return None
    text = f"rank 0 asks for the first gradient when it has sent {first} of {MICRO_BATCHES} micro-batches"
    return f"values and messages right, but {text}; if it waits there, some of the {len(ran.ended)} stages are idle"


def _remembered(ran: Ran) -> str | None:
    """What autograd has kept at most: that of two forwards at once, should they overlap, and each input once."""
    stages, rows = _Stages(dict(ran.task)), torch.ones(-(-ROWS // MICRO_BATCHES), WIDTHS[0]).double()
    for rank, one in enumerate(ran.ended):
        outs, most, book = [], [], Saved()
        with book.hooks():
            for _ in range(2):
                out = stages(rank, rows.clone().requires_grad_(rank > 0))
                outs.append(out.log_softmax(1) if rank == len(ran.ended) - 1 else out)
                most.append(book.most)
        forward, inputs = most[1] - most[0], MICRO_BATCHES * rows.nbytes  # the weights are in both
        if one.saved > most[1] + inputs:
            ratio = times((one.saved - inputs - most[0] + forward) / forward)
            text = f"autograd keeps {ratio} what one forward of a micro-batch needs, besides weights and inputs"
            return (
                f"values and messages right, but on rank {rank} {text}; keep inputs, and go forward again in backward"
            )
        rows = outs[0].detach()
    return None


_RECOMPUTATION = ScriptExercise(
    key="04.12",
    title="your own pipeline with recomputation",
    task=_task,
    verdict=_verdict,
    saved=True,
    levels={
        "plain": Level(
            points=3,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="2 and 4 processes end at one device's weights, and keep one forward at a time",
        ),
        "dropout": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="dropout"),),
            praise="and with dropout they do: both forwards of a micro-batch drop the same",
        ),
    },
    hints=(
        "Write GPipe first, which remembers everything: a loop that receives, goes forward and sends, then a loop that "
        "receives a gradient, goes backward and sends one. Lesson 04 has both loops.",
        "In the first loop put the forward under torch.no_grad(), and keep a list of inputs. The second loop takes an "
        "input from it, .requires_grad_(), goes forward once more, and now y.backward(gradient) has a graph.",
        "The loss of a batch is a sum over its micro-batches: each gives the sum of its rows' losses over the rows of "
        "the whole batch. Only the last stage computes it, in its second forward.",
        "torch.get_rng_state() before the first forward is what dropout will draw from. In the second loop, "
        "torch.random.fork_rng() keeps what the loop does to it from whatever comes after.",
    ),
)
