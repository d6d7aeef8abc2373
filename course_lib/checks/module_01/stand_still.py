"""01.2: 16-bit weights that do not move, to be found and mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run of plain SGD: the shape of the weights, the steps, and the largest gradient."""

    shape: tuple[int, ...]
    steps: int
    largest: int = 1  # gradients are whole numbers up to this
    lr: float = 2.0**-12  # with a larger one the weights end near 1/4, after a long way
    world_size: int = 1

    def __str__(self) -> str:
        return f"weights of shape {self.shape}, {self.steps} steps" + f", lr {self.lr}" * (self.lr > 0.01)


class SmallRun(NamedTuple):
    """What the answer gets. fp32 does not round, or, with an lr of 0.1, by too little to change the bf16 result."""

    weights: Tensor  # bf16
    gradients: list[Tensor]  # bf16, one per step
    lr: float


def _draw(case: Training, seed: int) -> SmallRun:
    """Weights between 1 and 2, each with gradients of one sign; one update is lost even in fp16."""
    generator = torch.Generator().manual_seed(seed * 1009 + case.steps + len(case.shape))
    weights = 1 + torch.randint(16, 112, case.shape, generator=generator) / 128
    signs = torch.randint(0, 2, case.shape, generator=generator) * 2 - 1
    sizes = [torch.randint(1, case.largest + 1, case.shape, generator=generator) for _ in range(case.steps)]
    if case.lr > 0.01:
        weights = signs * (0.25 + case.lr * sum(sizes))
    return SmallRun(weights.bfloat16(), [(signs * size).bfloat16() for size in sizes], case.lr)


def train(function: Callable[..., Any], run: SmallRun) -> Tensor | str:
    """Runs on a rank: what a call returned, or the type of what is no tensor."""
    result = function(run.weights, run.gradients, run.lr)
    return result.detach().clone() if isinstance(result, Tensor) else type(result).__name__


def _verdict(case: Training, run: SmallRun, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """The weights must be those of a training that never rounds, rounded once."""
    got = reports[0]
    if not isinstance(got, Tensor):
        return f"{case}: {wrong_kind(got, 'a tensor')}"
    if got.shape != run.weights.shape or got.dtype != torch.bfloat16:
        kind = f"{str(got.dtype).removeprefix('torch.')} of shape {tuple(got.shape)}"
        return f"{case}: returned {kind}, expected bfloat16 as the weights: only the copy has 32 bits"
    path = run.lr * sum((g.double() for g in run.gradients), torch.zeros(case.shape, dtype=torch.float64))
    if not torch.equal(got, (run.weights.double() - path).bfloat16()):
        rounded = sum((run.lr * g for g in run.gradients), torch.zeros(case.shape, dtype=torch.float64))
        if torch.equal(got, (run.weights.double() - rounded).bfloat16()):
            return f"{case}: lr x gradient is still rounded to 16 bits: make the gradient fp32 first"
        return f"{case}: {_how_far(got.double() - run.weights.double(), path, run)}"
    return None


def _how_far(moved: Tensor, path: Tensor, run: SmallRun) -> str:
    if not bool(moved.any()):
        weight = float(run.weights.flatten()[0])
        update = f"{weight:g} - {run.lr * abs(float(run.gradients[0].flatten()[0])):.3g}"
        return f"not one weight moved: {update} is rounded back to {weight:g} in each step"
    share = -float((moved * path.sign()).sum() / path.abs().sum())
    if share < 0:
        return "the weights moved the wrong way: an update is subtracted"
    if abs(share - 1) < 0.05:
        return (
            "the weights moved as far as they should, but were not rounded to the nearest bf16 number once, at the end"
        )
    return f"the weights moved {share:.3g} of the way: which sum is still kept in 16 bits, or which step left out?"


_STAND_STILL = ProbeExercise(
    key="01.2",
    title="find the bug: five hundred steps for nothing",
    inputs=_draw,
    probe=train,
    verdict=_verdict,
    levels={
        "moves": Level(
            points=2,
            again=True,
            cases=(Training(shape=(12,), steps=512),),
            praise="512 lost updates add up to 1/8, as in fp32",
        ),
        "edges": Level(
            points=2,
            cases=(
                Training(shape=(3, 5), steps=300, largest=3),
                Training(shape=(7,), steps=1, largest=3),
                Training(shape=(6,), steps=20, largest=5, lr=0.1),
                Training(shape=(4,), steps=0),
            ),
            praise="right for any shape, gradient and number of steps; the input is as it was",
        ),
    },
    hints=(
        "Print the weights after 1, 10 and 500 steps. They are exactly the first ones: what is 1.5 - 0.00024 in bf16?",
        "The gradients are right and the learning rate is right. The sum is rounded, and what is rounded away is gone.",
        "Keep what must not be rounded in fp32, outside the loop, and turn it into bf16 only for the result.",
    ),
)
