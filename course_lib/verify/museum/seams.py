"""Where a bug gets in: what a technique that is applied last can put in place of the library's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.parallel.data.options import Hook
from course_lib.training import step as steps
from course_lib.training.batches import Batch
from course_lib.training.engine import Loss
from course_lib.training.setup import Setup


def hook(setup: Setup, function: Hook) -> None:
    """What happens to a full bucket of gradients."""
    assert isinstance(setup.model, DistributedDataParallel)
    setup.model.register_comm_hook(function)


def after_backward(setup: Setup, work: Callable[[], None]) -> None:
    """Something that happens when all micro-batches are through."""
    run = setup.engine.run

    def run_and_work(inputs: Sequence[Tensor], loss: Loss) -> None:
        run(inputs, loss)
        work()

    setup.engine.run = run_and_work  # type: ignore[method-assign]


def own_means(setup: Setup, divided_by: int = 1) -> None:
    """Each micro-batch's loss is the mean over its own targets, which is what `cross_entropy` gives by default."""
    cut, run = setup.engine.cut, setup.engine.run
    parts: list[Batch] = []

    def cut_and_keep(batch: Batch) -> list[Batch]:
        parts[:] = cut(batch)
        return parts

    def run_on_means(inputs: Sequence[Tensor], loss: Loss) -> None:
        def mean(output: Tensor, number: int) -> Tensor:
            loss(output, number)  # what is logged is right
            targets = parts[number][1]
            return steps.loss_of(output, targets) / (steps.count_targets(parts[number]) * divided_by)

        run(inputs, mean)

    setup.engine.cut = cut_and_keep  # type: ignore[method-assign]
    setup.engine.run = run_on_means  # type: ignore[method-assign]


def own_norm(setup: Setup) -> Tensor:
    """The length of this rank's gradients as one vector, in float64."""
    return torch.stack([gradient.double().norm() for gradient in setup.local.gradients().values()]).norm()
