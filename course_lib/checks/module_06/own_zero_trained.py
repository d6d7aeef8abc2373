"""What 06.12 must end at: the same training in one process, with its states in a row; and what mistakes give."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors
from course_lib.checks.kit.script import Start

WIDTHS = (6, 9, 7, 3)
ROWS, STEPS = 16, 4
FROZEN = "2.weight"
_OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.3, "momentum": 0.9, "nesterov": True},
    "AdamW": {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.3},
}


def _make_model() -> nn.Module:
    """The one that stands in the learner's file."""
    maps = [nn.Linear(narrow, wide) for narrow, wide in zip(WIDTHS, WIDTHS[1:], strict=False)]
    return nn.Sequential(maps[0], nn.GELU(), maps[1], nn.GELU(), maps[2]).double()


def make_task(case: Start, seed: int) -> dict[str, Any]:
    """Weights, batches, and an optimizer whose rate is another one in each step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 61)
        weights = _make_model().state_dict()
        batches = [(torch.randn(ROWS, WIDTHS[0]).double(), torch.randint(WIDTHS[-1], (ROWS,))) for _ in range(STEPS)]
    name = "AdamW" if case.look == "adamw" else "SGD"
    options = _OPTIONS[name]
    rates = [options["lr"] * share for share in (1.0, 0.75, 0.5, 0.25)]
    frozen = [FROZEN] if case.look == "adamw" else []
    shared = {"weights": weights, "batches": batches, "rates": rates, "frozen": frozen}
    return shared | {"optimizer": name, "options": options}


@dataclass(frozen=True, kw_only=True)
class How:
    """What of a training may be otherwise; as it stands, it is right."""

    averaged: int = 1  # times that the ranks' sum is divided by their number
    own: bool = False  # each rank's piece learns from this rank's rows alone
    scheduled: bool = True
    cleared: bool = True
    remembers: bool = True
    frozen: bool = True


RIGHT = How()
WRONG = {
    "too large by the number of processes: gradients are added up over them, and their mean is what one steps with": (
        replace(RIGHT, averaged=0)
    ),
    "too small by the number of processes: the sum of the gradients is divided by it twice": (
        replace(RIGHT, averaged=2)
    ),
    "each rank's piece has learnt from this rank's own rows alone": replace(RIGHT, own=True),
    "every step has the rate of the start: the loop sets another one in param_groups, which the optimizer inside does "
    "not see": replace(RIGHT, scheduled=False),
    "a gradient is left from the step before": replace(RIGHT, cleared=False),
    "nothing is remembered from one step to the next: is there one optimizer for the whole training?": (
        replace(RIGHT, remembers=False)
    ),
    f"{FROZEN} is frozen, and is stepped as if its gradient were 0: weight decay moves it": (
        replace(RIGHT, frozen=False)
    ),
}


def trained(task: dict[str, Any], ranks: int, how: How) -> tuple[Tensors, Tensors]:
    """The same training in one process: weights at the end, and the states of all numbers that learn, each in a row."""
    model = _make_model()
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
    size = piece_size(rows.shape[1], len(rows))
    return torch.cat([row[rank * size : (rank + 1) * size] for rank, row in enumerate(rows)])


def piece_size(length: int, ranks: int) -> int:
    return -(-length // ranks)
