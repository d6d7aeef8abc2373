"""08.12: a script on dp x tp that hangs and, once it does not, silently trains another model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors, agree, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.verify.ratios import times

_WIDTH, _HIDDEN, _CLASSES, _ROWS, _STEPS, _TP = 8, 16, 4, 8, 4, 2
_GENTLE = 0.25  # times the rows of the last batch
_SMALL = 128  # bytes of norms and losses; the smallest gradient and activation have twice as many
_SHAPES = {
    **{f"up{layer}": (_HIDDEN, _WIDTH) for layer in (0, 1)},
    **{f"down{layer}": (_WIDTH, _HIDDEN) for layer in (0, 1)},
    "head": (_CLASSES, _WIDTH),
}


@dataclass(frozen=True, kw_only=True)
class _Axes(Start):
    """A start on dp by two."""

    optimizer: str = "SGD"

    @property
    def dp(self) -> int:
        """How many ranks hold the same pieces."""
        return self.world_size // _TP

    def __str__(self) -> str:
        return f"{self.world_size} processes, {self.optimizer}"


def _task(case: _Axes, seed: int) -> dict[str, Any]:
    """In the first step the pieces of one rank are above the limit and those of the other below it.

    In the last step nothing is to be clipped: its gradients are small, for its rows are.
    """
    dice = torch.Generator().manual_seed(1033 * seed + 47)
    weights = {name: torch.randn(shape, generator=dice).double() / 2 for name, shape in _SHAPES.items()}
    batches = [
        (torch.randn(_ROWS, _WIDTH, generator=dice).double(), torch.randint(_CLASSES, (_ROWS,), generator=dice))
        for _ in range(_STEPS)
    ]
    batches[-1] = (batches[-1][0] * _GENTLE, batches[-1][1])
    rate = 0.02 if case.optimizer == "AdamW" else 0.3
    task = {"weights": weights, "batches": batches, "optimizer": case.optimizer, "rate": rate, "tp": _TP}
    gradients = _gradients(weights, *batches[0])
    of_ranks = [
        sum(float(x.square().sum()) for name, x in _pieces(gradients, rank).items() if name != "head") ** 0.5
        for rank in range(_TP)
    ]
    return task | {"max_norm": sum(of_ranks) / _TP}


def _gradients(weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    w = {name: tensor.detach().clone().requires_grad_() for name, tensor in weights.items()}
    for layer in (0, 1):
        x = x + F.gelu(x @ w[f"up{layer}"].T) @ w[f"down{layer}"].T
    F.cross_entropy(x @ w["head"].T, y).backward()
    return {name: tensor.grad for name, tensor in w.items() if tensor.grad is not None}


def _pieces(whole: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """What tensor parallelism leaves on a rank."""
    dims = {"u": 0, "d": 1}
    return {
        name: tensor.chunk(_TP, dims[name[0]])[rank % _TP] if name[0] in dims else tensor
        for name, tensor in whole.items()
    }


def _trained(task: Mapping[str, Any], *, pieces: float = 1.0, head: float = 1.0, most: float = 1.0) -> Tensors:
    """One device's weights; the squares of both parts may count otherwise than once in the norm.

    `most` is the largest factor of a clipped gradient; 0: it is not clipped.
    """
    w = {name: tensor.clone() for name, tensor in task["weights"].items()}
    optimizer = getattr(torch.optim, task["optimizer"])(w.values(), lr=task["rate"])
    for x, y in task["batches"]:
        gradients = _gradients(w, x, y)
        squares = {name: float(x.square().sum()) for name, x in gradients.items()}
        of_head = squares.pop("head")
        norm = (pieces * sum(squares.values()) + head * of_head) ** 0.5
        for name, p in w.items():
            p.grad = gradients[name] * (min(most, task["max_norm"] / norm) if most else 1.0)
        optimizer.step()
    return w


def _verdict(case: _Axes, ran: Ran) -> str | None:
    """First whether ranks that hold the same agree, which says more than how far they are from one device."""
    task, found = dict(ran.task), [ran.saved(f"rank{rank}.pt") for rank in range(case.world_size)]
    want = _trained(task)
    wrong = {
        "no gradient was clipped": _trained(task, most=0.0),
        "small gradients are scaled up to the limit: clipping only makes them smaller": _trained(task, most=math.inf),
        "the norm counts the pieces once for each of the dp ranks that hold them": _trained(task, pieces=case.dp),
        "the norm counts the pieces too little: divided by dp, and then not added up over dp": _trained(
            task, pieces=1 / case.dp
        ),
        "the norm counts the head as often as there are ranks along tp": _trained(task, head=_TP),
        "the norm counts the head as often as there are ranks": _trained(task, head=case.world_size),
        "the norm is that of the pieces, and the head is not in it": _trained(task, head=0.0),
    }
    for rank, mine in enumerate(found):
        instead = {why: _pieces(tensors, rank) for why, tensors in wrong.items()}
        right, start = _pieces(want, rank), _pieces(task["weights"], rank)
        if reason := wrong_tensors(mine, right, start=start, instead=instead, tolerance=1e-5):
            unexplained = "one device" in reason or "at the end" in reason
            return f"rank {rank}: {reason}{_apart(found) if unexplained else ''}"
    return next(filter(None, (_traffic(case, ran, rank) for rank in range(case.world_size))), None)


def _apart(found: list[Any]) -> str:
    """Two ranks that hold the same piece, and do not agree on it."""
    if not all(isinstance(one, dict) and _SHAPES.keys() <= one.keys() for one in found):
        return ""
    for name in ("head", "up0"):
        for a, b in combinations(range(len(found)), 2):
            same = name == "head" or (a - b) % _TP == 0
            if same and not agree({name: found[a][name]}, {name: found[b][name]}, 1e-9):
                return f"; {name} should be the same on ranks {a} and {b}, and is not"
    return "; ranks that should hold the same do"


def _traffic(case: _Axes, ran: Ran, rank: int) -> str | None:
    """Activations along tp, gradients along dp, in each step; norms and losses are too short to count."""
    i, j = divmod(rank, _TP)
    groups = {"tp": range(i * _TP, i * _TP + _TP), "dp": range(j, case.world_size, _TP)}
    activations = 3 * _ROWS // case.dp * _WIDTH * 8  # two blocks forward, and backward as far as there are weights
    gradients = sum(tensor.nbytes for tensor in _pieces(ran.task["weights"], rank).values())
    for axis, target in (("tp", activations), ("dp", gradients)):
        members = ", ".join(map(str, groups[axis]))
        calls = [call for call in ran.ended[rank].calls if call.members == members and call.bytes > _SMALL]
        if case.dp == 1 and axis == "dp":
            continue
        if (sent := sum(call.bytes for call in calls)) != _STEPS * target:
            ratio = times(sent / (_STEPS * target))
            where = f"its group along {axis} (ranks {members})"
            return f"weights right, but rank {rank} hands {sent} B to {where}, {ratio} the target"
    return None


_MENDED = ScriptExercise(
    key="08.12",
    title="find the bug: two axes, two bugs",
    task=_task,
    verdict=_verdict,
    levels={
        "two": Level(
            points=2,
            cases=(_Axes(world_size=2), _Axes(world_size=2, optimizer="AdamW")),
            praise="nothing hangs on 2 processes, and they train what one device trains",
        ),
        "four": Level(
            points=3,
            again=True,
            cases=(_Axes(world_size=4), _Axes(world_size=4, optimizer="AdamW")),
            praise="and so do 4, with the same traffic on both axes",
        ),
    },
    hints=(
        "Begin with the hang, on 2 processes. Let each rank print a line before and after each collective, with the "
        "step. Which one do they not make together, and which number made them part?",
        "A condition around a collective has to come out alike on all of its ranks. This one asks a number that only "
        "this rank knows. What should be compared with max_norm, and when does a rank know it?",
        "Now 4 processes. Which ranks should hold the same numbers after a step, and do they? Print one weight on "
        "every rank.",
        "Write down for each of the four ranks the members of its tp_group and of its dp_group. On 2 by 2, whom does "
        "rank 0 meet along dp: the one beside it, or the one that holds the same piece?",
    ),
)
