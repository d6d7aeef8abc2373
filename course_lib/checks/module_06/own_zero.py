"""06.12: ZeRO-1 of one's own around any optimizer: a piece of the row is stepped, with a piece of the states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import FP64, Level
from course_lib.verify.alike import born_with
from course_lib.verify.equality import close, scale_of
from course_lib.verify.ratios import exactly, times

WIDTHS = (6, 9, 7, 3)
ROWS, STEPS = 16, 4
FROZEN = "2.weight"
_TOLERANCE = 1e-9
_SMALL = 16  # bytes of a loss and its like
_OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.3, "momentum": 0.9, "nesterov": True},
    "AdamW": {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.3},
}


def _model() -> nn.Module:
    """The one that stands in the learner's file."""
    maps = [nn.Linear(narrow, wide) for narrow, wide in zip(WIDTHS, WIDTHS[1:], strict=False)]
    return nn.Sequential(maps[0], nn.GELU(), maps[1], nn.GELU(), maps[2]).double()


def _task(case: Start, seed: int) -> dict[str, Any]:
    """Weights, batches, and an optimizer whose rate is another one in each step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 61)
        weights = _model().state_dict()
        batches = [(torch.randn(ROWS, WIDTHS[0]).double(), torch.randint(WIDTHS[-1], (ROWS,))) for _ in range(STEPS)]
    name = "AdamW" if case.look == "adamw" else "SGD"
    options = _OPTIONS[name]
    rates = [options["lr"] * share for share in (1.0, 0.75, 0.5, 0.25)]
    frozen = [FROZEN] if case.look == "adamw" else []
    shared = {"weights": weights, "batches": batches, "rates": rates, "frozen": frozen}
    return shared | {"optimizer": name, "options": options}


@dataclass(frozen=True, kw_only=True)
class _How:
    """What of a training may be otherwise; as it stands, it is right."""

    averaged: int = 1  # times that the ranks' sum is divided by their number
    own: bool = False  # each rank's piece learns from this rank's rows alone
    scheduled: bool = True
    cleared: bool = True
    remembers: bool = True
    frozen: bool = True


_RIGHT = _How()
_WRONG = {
    "too large by the number of processes: gradients are added up over them, and their mean is what one steps with": (
        replace(_RIGHT, averaged=0)
    ),
    "too small by the number of processes: the sum of the gradients is divided by it twice": (
        replace(_RIGHT, averaged=2)
    ),
    "each rank's piece has learnt from this rank's own rows alone": replace(_RIGHT, own=True),
    "every step has the rate of the start: the loop sets another one in param_groups, which the optimizer inside does "
    "not see": replace(_RIGHT, scheduled=False),
    "a gradient is left from the step before": replace(_RIGHT, cleared=False),
    "nothing is remembered from one step to the next: is there one optimizer for the whole training?": (
        replace(_RIGHT, remembers=False)
    ),
    f"{FROZEN} is frozen, and is stepped as if its gradient were 0: weight decay moves it": (
        replace(_RIGHT, frozen=False)
    ),
}


def _trained(task: dict[str, Any], ranks: int, how: _How) -> tuple[Tensors, Tensors]:
    """The same training in one process: weights at the end, and the states of all numbers that learn, each in a row."""
    model = _model()
    model.load_state_dict(task["weights"])
    for name in task["frozen"]:
        model.get_parameter(name).requires_grad_(False)
    learn = [weight for weight in model.parameters() if weight.requires_grad or not how.frozen]
    sizes = [weight.numel() for weight in learn]
    optimizer = getattr(torch.optim, task["optimizer"])(learn, **task["options"])
    total = torch.zeros(sum(sizes), dtype=torch.float64)
    for (x, y), rate in zip(task["batches"], task["rates"], strict=True):
        if how.scheduled:
            optimizer.param_groups[0]["lr"] = rate
        pairs = zip(x.chunk(ranks), y.chunk(ranks), strict=True)
        rows = torch.stack([_gradients(model, learn, few, their) for few, their in pairs])
        new = _own_pieces(rows) if how.own else rows.sum(0) / ranks**how.averaged
        total = new if how.cleared else total + new
        for weight, part in zip(learn, total.split(sizes), strict=True):
            weight.grad = part.view_as(weight).clone()
        if not how.remembers:
            optimizer.state.clear()
        optimizer.step()
    states = [optimizer.state[weight] for weight in learn]
    names = [name for name, one in states[0].items() if one.shape == learn[0].shape]
    return model.state_dict(), {name: torch.cat([one[name].flatten() for one in states]) for name in names}


def _gradients(model: nn.Module, learn: list[nn.Parameter], rows: Tensor, targets: Tensor) -> Tensor:
    """One rank's, in a row; 0 where a weight gets none."""
    model.zero_grad()
    F.cross_entropy(model(rows), targets).backward()
    parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in learn]
    return torch.cat([part.flatten() for part in parts])


def _own_pieces(rows: Tensor) -> Tensor:
    """Of each rank's row that rank's piece. Shapes: (ranks, N) -> (N,)."""
    size = _piece(rows.shape[1], len(rows))
    return torch.cat([row[rank * size : (rank + 1) * size] for rank, row in enumerate(rows)])


def _piece(length: int, ranks: int) -> int:
    return -(-length // ranks)


def _verdict(case: Start, ran: Ran) -> str | None:
    """Weights of every rank after all steps, then what each remembers, then what has travelled."""
    task, ranks = dict(ran.task), case.world_size
    answers = [ran.saved(f"answer-{rank}.pt") for rank in range(ranks)]
    for rank, answer in enumerate(answers):
        if not isinstance(answer, dict) or {"weights", "states"} - answer.keys():
            return f"answer-{rank}.pt is to hold a dict with 'weights' and 'states'"
    with born_with(0, torch.float64):
        want, states = _trained(task, ranks, _RIGHT)
        for rank, answer in enumerate(answers):
            if wrong_tensors(answer["weights"], want, start=task["weights"], instead={}, tolerance=_TOLERANCE):
                instead = {sentence: _trained(task, ranks, how)[0] for sentence, how in _WRONG.items()}
                return _wrong_weights(answers, rank, want, task["weights"], instead)
    length = next(len(one) for one in states.values())
    return _wrong_states(answers, states, _piece(length, ranks)) or _wrong_calls(ran, _piece(length, ranks))


def _wrong_weights(
    answers: list[Any], rank: int, want: Tensors, start: Tensors, instead: dict[str, Tensors]
) -> str | None:
    reason = wrong_tensors(answers[rank]["weights"], want, start=start, instead=instead, tolerance=_TOLERANCE)
    other = (rank + 1) % len(answers)
    alike = wrong_tensors(answers[other]["weights"], answers[rank]["weights"], start=start, instead={}) is None
    apart = f"; and the weights of rank {other} are other ones: does each rank get every piece?" * (not alike)
    return f"rank {rank}: {reason}{apart}"


def _wrong_states(answers: list[Any], want: Tensors, size: int) -> str | None:
    """Each rank remembers of its own piece, and all of them together what one device remembers."""
    for rank, answer in enumerate(answers):
        found = answer["states"]
        if not isinstance(found, dict) or any(not isinstance(found.get(name), Tensor) for name in want):
            names = " and ".join(map(repr, want))
            return f"weights right, but rank {rank}'s states are to be a dict with {names}, as the optimizer names them"
        for name, one in found.items():
            if isinstance(one, Tensor) and one.numel() > size:
                memory = f"{one.numel()} numbers as {name!r}, {times(one.numel() / size)} its piece of {size}"
                return f"weights right, but rank {rank} remembers {memory}"
    for name, right in want.items():
        whole = torch.cat([answer["states"][name].flatten() for answer in answers])[: len(right)]
        if not close(whole, right, tolerance=_TOLERANCE):
            ratio = scale_of(whole, right) if whole.shape == right.shape else None
            how = f"{exactly(ratio)} what" if ratio is not None else "not what"
            return f"weights right, but {name!r} of all ranks' pieces, joined, is {how} one device remembers of the row"
    return None


def _wrong_calls(ran: Ran, size: int) -> str | None:
    """One reduce-scatter of gradients and one all-gather of weights a step, each of a piece."""
    for rank, one in enumerate(ran.ended):
        for operation, why in _TOO_MUCH.items():
            sent = sum(call.bytes for call in one.calls if call.operation == operation and call.bytes > _SMALL)
            if sent:
                return f"values right, but rank {rank} hands {sent} B to {operation}: {why}"
        for kind, what in (("reduce_scatter", "gradients"), ("all_gather", "weights")):
            sizes = [call.bytes for call in one.calls if call.operation.startswith(kind)]
            if sum(sizes) != STEPS * size * FP64 or len(sizes) != STEPS:
                ratio = times(sum(sizes) / (STEPS * size * FP64))
                seen = f"{len(sizes)} calls of {kind} for {what} in {STEPS} steps, with {ratio} the bytes of its pieces"
                return f"values right, but rank {rank} makes {seen}; the target is one call a step"
    return None


_TOO_MUCH = {
    "all_reduce": "every rank gets the mean of all gradients, and needs that of its piece alone",
    "broadcast": "one all-gather brings all pieces at once",
    "all_to_all": "one all-gather brings all pieces at once",
}


_ZERO = ScriptExercise(
    key="06.12",
    title="your own sharded optimizer",
    task=_task,
    verdict=_verdict,
    levels={
        "sgd": Level(
            points=3,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="momentum is cut into pieces, the rates of the loop arrive, and the weights are those of one device",
        ),
        "adamw": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="adamw"),),
            praise="AdamW is cut alike, and what is frozen stays where it is",
        ),
    },
    hints=(
        "What does the optimizer inside need? A tensor of its own that learns, this rank's piece of the row, and a "
        "gradient of the same shape before each step. It need not know that there is a model.",
        "torch.cat makes the row, and F.pad its zeros: -length % ranks of them. The row of gradients is laid in the "
        "same way, from the .grad of the same tensors in the same order.",
        "dist.reduce_scatter_tensor(piece, row) adds up and leaves each rank its piece; gloo cannot average, so divide "
        "yourself. dist.all_gather_into_tensor(row, piece) is the way back.",
        "The loop writes into optimizer.param_groups, and the optimizer inside reads its own: let both be one list. "
        "optimizer.state[tensor] is a dict of what it remembers of a tensor; not all in it is as long as the piece.",
    ),
)
