"""03.11: a training loop of one's own with torch's DDP, accumulation and a batch that does not divide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.ranks.saved import Saved
from course_lib.verify.ratios import times

MICRO_BATCHES = 2
ROWS = (13, 13, 13, 3)  # neither divides by 2 or 4; of the last batch, one of four processes gets no row
WIDTHS = (6, 16, 3)
_SMALL = 16  # bytes of a loss and its like, which are no gradient

_Weigh = Callable[[Tensor, int, int, int], Tensor]  # (losses of the rows, rows of the batch, ranks, rows of the rank)


def _model() -> nn.Module:
    """The one that stands in the learner's file."""
    return nn.Sequential(nn.Linear(WIDTHS[0], WIDTHS[1]), nn.GELU(), nn.Linear(WIDTHS[1], WIDTHS[2])).double()


def _task(case: Start, seed: int) -> dict[str, Any]:
    """_Weights, batches and an optimizer: plain SGD shows a wrong factor, AdamW is what one trains with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 17)
        weights = _model().state_dict()
        batches = [(torch.randn(rows, WIDTHS[0]).double(), torch.randint(WIDTHS[2], (rows,))) for rows in ROWS]
    optimizer, rate = ("AdamW", 0.01) if case.look == "adamw" else ("SGD", 0.5)
    return {"weights": weights, "batches": batches, "optimizer": optimizer, "rate": rate}


def _right(losses: Tensor, batch: int, ranks: int, own: int) -> Tensor:
    """DDP divides by the ranks, so each row's share of the batch is multiplied by them first."""
    return losses.sum() * ranks / batch


_WRONG: dict[str, tuple[_Weigh, bool]] = {  # what is said of it, the weight of the rows, and whether ranks average
    "each process divides by its own rows, so a row in a short part counts more; divide by the rows of the whole "
    "batch": (lambda losses, batch, ranks, own: losses.sum() / max(own, 1), True),
    "each micro-batch has its own mean, so a row in a short one counts more; divide by the rows of the whole batch": (
        lambda losses, batch, ranks, own: losses.sum() / max(len(losses), 1) / MICRO_BATCHES,
        True,
    ),
    "too small by the number of processes: DDP divides by it too, after you have divided by the rows of the whole "
    "batch": (lambda losses, batch, ranks, own: losses.sum() / batch, True),
    "too large by the number of processes: DDP divides by it once, and you multiply by it twice": (
        lambda losses, batch, ranks, own: losses.sum() * ranks * ranks / batch,
        True,
    ),
    "the losses are divided by the rows of the whole batch, and by the number of micro-batches as well": (
        lambda losses, batch, ranks, own: losses.sum() * ranks / batch / MICRO_BATCHES,
        True,
    ),
    "the losses are added up and not divided by the rows of the batch": (
        lambda losses, batch, ranks, own: losses.sum(),
        True,
    ),
    "this is what rank 0 learns from its own rows alone: is the forward that of the wrapped model, and was the last "
    "backward outside no_sync()?": (_right, False),
}


def _trained(task: dict[str, Any], ranks: int, weigh: _Weigh, averaged: bool) -> tuple[Tensors, list[float]]:
    """The same training in one process, rank by rank: weights at the end, and the mean loss of each batch."""
    model = _model()
    model.load_state_dict(task["weights"])
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    means = []
    for x, y in task["batches"]:
        optimizer.zero_grad()
        means.append(F.cross_entropy(model(x), y).item())
        parts = list(zip(x.tensor_split(ranks), y.tensor_split(ranks), strict=True))
        for rows, targets in parts if averaged else parts[:1]:
            pairs = zip(rows.tensor_split(MICRO_BATCHES), targets.tensor_split(MICRO_BATCHES), strict=True)
            for few, their in pairs:
                losses = F.cross_entropy(model(few), their, reduction="none")
                (weigh(losses, len(x), ranks, len(rows)) / (ranks if averaged else 1)).backward()
        optimizer.step()
    return model.state_dict(), means


def _verdict(case: Start, ran: Ran) -> str | None:
    """Weights after all steps, then each step's loss, then what has travelled."""
    answer, task, ranks = ran.saved("answer.pt"), dict(ran.task), case.world_size
    if not isinstance(answer, dict) or {"weights", "losses"} - answer.keys():
        return "answer.pt is to hold a dict with 'weights' and 'losses'"
    want, means = _trained(task, ranks, _right, averaged=True)
    instead = {sentence: _trained(task, ranks, *wrong)[0] for sentence, wrong in _WRONG.items()}
    reason = wrong_tensors(answer["weights"], want, start=task["weights"], instead=instead, tolerance=1e-9)
    if reason is not None:
        return reason + _since_when(answer["losses"], means) * reason.endswith("at the end")
    losses = answer["losses"]
    found = losses.tolist() if isinstance(losses, Tensor) else losses
    return _wrong_losses(found, means) or _too_much(ran, len(means)) or _wrong_parts(ran) or _kept_too_long(ran)


def _since_when(found: Any, want: list[float]) -> str:
    """The step that went wrong, since the loss of a batch is that of the weights before its step."""
    if not isinstance(found, list | tuple) or len(found) != len(want):
        return ""
    right = [abs(float(loss) - mean) < 1e-6 for loss, mean in zip(found, want, strict=True)]
    steps = right.index(False) if False in right else len(right)  # so many losses are right
    if steps == 0:
        return ""  # the losses themselves are another thing, and say nothing of the weights
    if steps == 1:
        return "; the loss of batch 2 shows that the first step is wrong already"
    special = f"it has {ROWS[-1]} rows" if steps == len(want) else "is a gradient left from the step before?"
    return f"; by the losses, the step on batch {steps - 1} is right and that on batch {steps} is not: {special}"


def _wrong_losses(found: Any, want: list[float]) -> str | None:
    if not isinstance(found, list | tuple) or len(found) != len(want):
        return f"weights right; 'losses' is to be a list of {len(want)} numbers, one for each batch"
    for number, (loss, right) in enumerate(zip(found, want, strict=True), start=1):
        if not abs(float(loss) - right) < 1e-6:
            what = "the mean over all rows of the batch, before its step"
            return f"weights right, but the loss of batch {number} is {float(loss):.4f}, and {right:.4f} is {what}"
    return None


def _too_much(ran: Ran, steps: int) -> str | None:
    """Bytes of gradients on each rank: one all-reduce of the model a step, however many micro-batches there are."""
    model_bytes = sum(tensor.nbytes for tensor in ran.task["weights"].values())
    for rank, one in enumerate(ran.ended):
        sent = sum(call.bytes for call in one.calls if call.operation == "all_reduce" and call.bytes > _SMALL)
        if sent != steps * model_bytes:
            ratio = times(sent / (steps * model_bytes))
            text = f"values right, but rank {rank} hands {sent} B of gradients to all-reduces, {ratio} the target"
            return f"{text}; only the last micro-batch has to: the others belong under no_sync(), forward and backward"
    return None


def _wrong_parts(ran: Ran) -> str | None:
    """The rows that the layers of each rank were given: its own part of each batch, in two pieces, and no more."""
    batches = [x for x, _ in ran.task["batches"]]
    for rank, one in enumerate(ran.ended):
        parts = [len(x.tensor_split(len(ran.ended))[rank]) for x in batches]
        most, micro = max(one.rows, default=0), -(-max(parts) // MICRO_BATCHES)
        if (found := sum(one.rows)) > sum(parts):
            text = f"the layers of rank {rank} are given {found} rows, and its parts of the batches have {sum(parts)}"
            return f"values right, but {text}: which rows does each process compute?"
        if most > micro:
            text = f"the layers of rank {rank} are given {most} rows at once, and its largest micro-batch has {micro}"
            return f"values right, but {text}: is its part cut in two?"
    return None


def _kept_too_long(ran: Ran) -> str | None:
    """Micro-batches are there to keep less: what autograd has kept tells whether one goes before the next comes."""
    rows = max(len(x) for x, _ in ran.task["batches"])
    for rank, one in enumerate(ran.ended):
        own = len(torch.empty(rows).tensor_split(len(ran.ended))[rank])
        micro, whole = (_kept(ran.task["weights"], n, rows) for n in (-(-own // MICRO_BATCHES), own))
        if one.saved > (micro + whole) / 2:
            text = f"values right, but autograd keeps {one.saved} B on rank {rank}, where a micro-batch needs {micro}"
            return f"{text}: does each one go backward before the next goes forward?"
    return None


def _kept(weights: Tensors, some: int, rows: int) -> int:
    """Bytes that autograd keeps of a forward of some rows of a batch: a view of these keeps the whole batch."""
    model, book = _model(), Saved()
    model.load_state_dict(weights)
    x, y = torch.zeros(rows, WIDTHS[0]).double(), torch.zeros(rows, dtype=torch.int64)
    with book.hooks():
        F.cross_entropy(model(x[:some]), y[:some], reduction="sum")
    return book.most


_LOOP = ScriptExercise(
    key="03.11",
    title="your own DDP loop",
    task=_task,
    verdict=_verdict,
    saved=True,
    levels={
        "sgd": Level(
            points=3,
            cases=(Start(world_size=4), Start(world_size=2)),  # factors of 2 have too many causes
            praise="on 4 and on 2 processes SGD ends at one device's weights, a process without rows included",
        ),
        "adamw": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="adamw"),),
            praise="and AdamW does, with one all-reduce of the gradients a step",
        ),
    },
    hints=(
        "Write it for one process first: a loop over the batches, an inner one over micro-batches, each with a "
        "backward, then a step. Then wrap the model, and ask what each process has to leave out.",
        "DDP averages: it adds up the ranks' gradients and divides by their number. Which factor does a row's loss "
        "need, so that after this division it counts one over the rows of the whole batch, on whichever rank it is?",
        "F.cross_entropy(..., reduction='sum') of no rows is 0, where the mean of none is nan. And tensor_split "
        "makes the same number of parts on every rank, if need be empty ones; chunk may make fewer.",
        "with nullcontext() if number == last else model.no_sync(): forward and backward both stand inside. For the "
        "loss of the batch, add up each process's share, and all-reduce that one number.",
    ),
)
