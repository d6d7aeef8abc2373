"""A trainer that the learner mended, step by step beside one device, each rank's parts against that device's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from math import isclose
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from course_lib.checks.kit.gradients import Place, agree, differing, malformed
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.said import import_optimizers, wrong_kind
from course_lib.checks.kit.scene import number_or_type
from course_lib.checks.kit.work import import_sympy
from course_lib.training.batches import Batch
from course_lib.training.trainer import Trainer
from course_lib.verify.causes import Causes

_INPUT = "the input x"


class MendedStep(NamedTuple):
    """One rank's gradients and the parts of one device's that belong there, and both losses."""

    got: dict[Place, Tensor | None]
    want: dict[Place, Tensor | None]
    loss: float | str
    right_loss: float


class Climbed(NamedTuple):
    """What one rank says of a hunted trainer: the learner's diagnosis, or its steps."""

    diagnosis: Any
    steps: Sequence[MendedStep] = ()


def trainers_ready(*modules: str) -> None:
    """Runs on a rank, outside the learner's time: what the first trainer, and its first backward, import."""
    for module in modules:
        import_module(f"course_lib.training.{module}")
    import_sympy()
    import_optimizers()


def gradients_left(case: Any, given: Any, trial: Trial) -> Any:
    """The gradients of all steps, if they are wrong: what a slip is known by."""
    found = [] if case.diagnosis else [step for report in trial.reports for step in report.steps]
    return None if all(agree(step.got, step.want) for step in found) else [step.got for step in found]


def step_beside(
    trainer: Trainer,
    alone: Trainer,
    batch: Batch,
    *,
    of_inputs: bool = False,
    before_update: Callable[[], Any] = lambda: None,
) -> MendedStep:
    """Runs on a rank: both take a step. With `of_inputs` the gradient of what they are given counts as well."""
    mine, theirs = (_on_a_leaf(batch) if of_inputs else batch for _ in range(2))
    rank, right = dist.get_rank(), alone.compute_gradients(theirs)
    loss = number_or_type(trainer.compute_gradients(mine), tensors=True)
    got = {(rank, name): _copy(p.grad) for name, p in trainer.local.parameters.items()}
    whole = alone.gradients()
    want: dict[Place, Tensor | None] = {
        # What is frozen has none on either side.
        (rank, name): trainer.local.part(name, whole[name]).clone() if name in whole else None
        for name in trainer.local.parameters
    }
    if of_inputs:
        got[rank, _INPUT], want[rank, _INPUT] = mine[0].grad, theirs[0].grad
    alone.update()
    before_update()
    trainer.update()
    return MendedStep(got, want, loss, right)


def _on_a_leaf(batch: Batch) -> Batch:
    inputs, targets = batch
    return inputs.clone().requires_grad_(), targets


def _copy(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.clone()


def first_wrong(by_rank: Sequence[Sequence[MendedStep]], causes: Causes, later: str = "") -> str | None:
    """What is said of the first step that is wrong, of gradients or the loss; `later` is asked if it is not step 1."""
    for number, steps in enumerate(zip(*by_rank, strict=True), start=1):
        got = {place: x for step in steps for place, x in step.got.items()}
        want = {place: x for step in steps for place, x in step.want.items()}
        reason = malformed(got, want, "a division by zero?")
        if not reason and not agree(got, want):
            reason = differing(got, want, causes, {})
        if reason := reason or _wrong_loss(steps):
            before = f", and every step before is right: {later}" * bool(later and number > 1)
            return f"step {number}: {reason}{before}"
    return None


def _wrong_loss(steps: Sequence[MendedStep]) -> str | None:
    for rank, step in enumerate(steps):
        if isinstance(step.loss, str):
            return f"right gradients, but rank {rank} {wrong_kind(step.loss, 'the loss as a number')}"
        if not isclose(step.loss, step.right_loss, rel_tol=1e-9):
            return (
                f"right gradients, but the loss on rank {rank} is {step.loss:.6g}, one device's {step.right_loss:.6g}"
            )
    return None
