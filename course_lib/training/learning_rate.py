"""How the learning rate goes with the steps: up in a line, then as it is, or down along half a cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from course_lib.errors import four_parts

Schedule = Literal["constant", "cosine"]


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """The rate of every step, from the step's number alone: a run that goes on has nothing to remember.

    Step n of `warmup_steps` has n / (warmup_steps + 1) of `peak`, and the one after them all of it. PyTorch's LinearLR
    and CosineAnnealingLR, one after the other in SequentialLR, give the same.
    Source: Goyal et al. 2017, section 2.2 (warm-up); Loshchilov and Hutter 2017, equation 5 (cosine).
    Raises: ValueError for another schedule, and for a warm-up that the run does not outlast.
    """

    peak: float
    steps: int  # of the whole run
    warmup_steps: int = 0
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            way_out = f"choose from {', '.join(get_args(Schedule))}"
            raise ValueError(four_parts("LearningRate", f"schedule={self.schedule!r}", "not a known schedule", way_out))
        if not 0 <= self.warmup_steps < self.steps:
            values, rule = f"warmup_steps={self.warmup_steps}, steps={self.steps}", "a step is left after the warm-up"
            raise ValueError(four_parts("LearningRate", values, rule, f"give 0 <= warmup_steps < {self.steps}"))

    def of(self, number: int) -> float:
        """The rate of a step; they count from 1."""
        after = number - 1 - self.warmup_steps
        if after < 0:
            return self.peak * number / (self.warmup_steps + 1)
        if self.schedule == "constant":
            return self.peak
        return self.peak * (1 + math.cos(math.pi * after / (self.steps - self.warmup_steps))) / 2
