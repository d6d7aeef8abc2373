"""What a mesh of dp and tp makes of the blocks of 07.10: pieces, one device's training, and norms added up wrongly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.script import Start

WIDTH, ROWS, STEPS = 8, 8, 4
_HIDDEN, _CLASSES = 16, 4
_CUT = {"up.weight": 0, "up.bias": 0, "down.weight": 1}  # the dim along tp; the rest is whole there

MISTAKES = {
    "never": "the gradients were not clipped; do you scale what the optimizer reads?",
    "always": "gradients below max_norm are made larger: clipping only makes smaller",
    "kept": "the gradients of the step before are still there",
}

_Pieces = Mapping[str, Tensor]


class _Block(nn.Module):
    """The one that stands in the learner's file."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, _HIDDEN), nn.Linear(_HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + y


def _model() -> nn.Sequential:
    return nn.Sequential(_Block(), _Block(), nn.Linear(WIDTH, _CLASSES)).double()


@dataclass(frozen=True, kw_only=True)
class Mesh(Start):
    """A start on a mesh of dp by tp."""

    tp: int
    optimizer: str = "SGD"

    @property
    def dp(self) -> int:
        """How many ranks share a piece that tp has cut."""
        return self.world_size // self.tp

    def __str__(self) -> str:
        return f"a mesh of {self.dp} x {self.tp}, {self.optimizer}"

    def piece(self, name: str, whole: Tensor, rank: int) -> Tensor:
        """What a rank holds of a tensor that tp cuts first, and FSDP then by rows."""
        if (dim := _dim_along_tp(name)) is not None:
            whole = whole.chunk(self.tp, dim)[rank % self.tp]
        rows = whole.chunk(self.dp)
        return rows[rank // self.tp] if rank // self.tp < len(rows) else whole[:0]

    def pieces(self, whole: _Pieces, rank: int) -> dict[str, Tensor]:
        """All of a rank."""
        return {name: self.piece(name, tensor, rank) for name, tensor in whole.items()}


def _dim_along_tp(name: str) -> int | None:
    return next((dim for end, dim in _CUT.items() if name.endswith(end)), None)


def make_task(case: Mesh, seed: int) -> dict[str, Any]:
    """The norm at which gradients are clipped lies between those of the steps, so some are and some are not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1013 * seed + 29)
        weights = _model().state_dict()
        batches = [(torch.randn(ROWS, WIDTH).double(), torch.randint(_CLASSES, (ROWS,))) for _ in range(STEPS)]
    rate = 0.01 if case.optimizer == "AdamW" else 0.2
    task = {"weights": weights, "batches": batches, "optimizer": case.optimizer, "rate": rate, "tp": case.tp}
    norms = trained(task | {"max_norm": torch.inf})[1]
    return task | {"max_norm": (min(norms) + max(norms)) / 2}


def trained(task: Mapping[str, Any], mistake: str = "") -> tuple[dict[str, Tensor], list[float]]:
    """One device: the weights at the end, and the norm of each step's gradients before they are clipped."""
    model, norms = _model(), []
    model.load_state_dict(task["weights"])
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    for x, y in task["batches"]:
        if mistake != "kept":
            optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norms.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])))
        scale = 1.0 if mistake == "never" else task["max_norm"] / (norms[-1] + 1e-6)
        for p in model.parameters():
            assert p.grad is not None
            p.grad *= scale if mistake == "always" else min(scale, 1.0)
        optimizer.step()
    return model.state_dict(), norms


def _gradients(task: Mapping[str, Any], rows: int = ROWS) -> dict[str, Tensor]:
    """Of the first step, from so many rows of its batch."""
    model, (x, y) = _model(), task["batches"][0]
    model.load_state_dict(task["weights"])
    F.cross_entropy(model(x[:rows]), y[:rows]).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def mistaken_norms(case: Mesh, task: Mapping[str, Any]) -> dict[str, float]:
    """What other sums give, by what is said of each."""
    whole, part = _gradients(task), _gradients(task, ROWS // case.dp)
    ranks, tp = range(case.world_size), case.tp
    norms = {rank: _norm(case.pieces(whole, rank).values()) for rank in ranks}

    def along(some: Iterable[int]) -> float:
        return sum(norms[rank] ** 2 for rank in some) ** 0.5

    found = {
        "that is the norm of the rows of dp 0 alone: do all ranks read them?": _norm(part.values()),
        "what is whole on each rank along tp is counted there as often as it stands": along(ranks),
    }
    for i in range(case.dp):
        found[f"that is added up over ranks {i * tp} to {i * tp + tp - 1} along tp alone"] = along(
            range(i * tp, i * tp + tp)
        )
    for j in range(tp):
        found["that is added up along dp alone: what the other ranks along tp hold is missing"] = along(ranks[j::tp])
    cut = {name: x for name, x in whole.items() if _dim_along_tp(name) is not None}
    mine = _norm(x for rank in range(tp) for x in case.pieces(cut, rank).values())
    rest = _norm(x for name, x in whole.items() if name not in cut)
    found["what tp has cut is added up along tp alone, and dp cuts it too"] = math.hypot(mine, rest)
    found |= {f"that is the norm of the pieces of rank {rank} alone": norms[rank] for rank in ranks}
    return found


def _norm(tensors: Iterable[Tensor]) -> float:
    return sum(float(x.square().sum()) for x in tensors) ** 0.5
