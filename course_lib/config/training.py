"""How a model is trained: the optimizer, clipping, and micro-batches per step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from course_lib.errors import four_parts

Optimizer = Literal["sgd", "adamw", "adamw8bit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """What one step does with a batch; plain SGD by default, since it shows every error of scale."""

    optimizer: Optimizer = "sgd"
    learning_rate: float = 0.1
    weight_decay: float = 0.0
    adam_eps: float = 1e-8  # what Adam adds to the size by which it divides a gradient
    max_norm: float | None = None  # gradients are scaled down to this global norm; None: they are left as they are
    accumulation: int = 1  # micro-batches per step on each rank

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Optimizer):
            way_out = f"choose from {', '.join(get_args(Optimizer))}"
            _refuse(f"optimizer={self.optimizer!r}", "not a known optimizer", way_out)
        _require(0 < self.learning_rate < math.inf, f"learning_rate={self.learning_rate}", "learning_rate > 0")
        _require(0 <= self.weight_decay < math.inf, f"weight_decay={self.weight_decay}", "weight_decay >= 0")
        _require(0 < self.adam_eps < math.inf, f"adam_eps={self.adam_eps}", "adam_eps > 0")
        _require(self.max_norm is None or 0 < self.max_norm < math.inf, f"max_norm={self.max_norm}", "max_norm > 0")
        if not isinstance(self.accumulation, int) or self.accumulation < 1:
            rule = "a step takes whole micro-batches, at least one"
            _refuse(f"accumulation={self.accumulation!r}", rule, "give accumulation >= 1")


def _require(holds: bool, values: str, rule: str) -> None:
    if not holds:
        _refuse(values, f"{rule}, and finite", f"give {rule}")


def _refuse(values: str, rule: str, way_out: str) -> None:
    raise ValueError(four_parts("TrainConfig", values, rule, way_out))
