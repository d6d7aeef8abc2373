"""The technique of a scaled loss: all ranks skip a step in which the gradients of one have overflowed.

trainer = Trainer(model, config, mesh=make_mesh(tp=2), apply=(tensor(), scaled_loss(LossScaler())))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.optim import Optimizer

from course_lib.savers.loss_scaler import LossScaler
from course_lib.training.setup import Setup, Technique


def scaled_loss(scaler: LossScaler) -> Technique:
    """Multiply the loss that is differentiated by the scaler's number, and the gradients by its inverse at the end.

    A step has one backward: gradients that were there before would be divided as well.
    Cost: an all-reduce of one number in each step, over all ranks.
    """

    def apply(setup: Setup) -> None:
        setup.begin("scaled_loss")
        ends, local, before, shared = setup.engine.ends, setup.local, setup.engine.ends.around, setup.shared

        @contextmanager
        def around() -> Iterator[None]:
            with before():
                yield
            scaler.unscale_(local.gradients().values(), local.everyone)

        def skipping(optimizer: Optimizer) -> Optimizer:
            made = shared(optimizer)
            made.step = partial(_step, scaler, made.step)  # type: ignore[method-assign, assignment]
            return made

        ends.around, ends.factor, setup.shared = around, lambda: scaler.scale, skipping

    return apply


def _step(scaler: LossScaler, step: Callable[[], Any]) -> None:
    if not scaler.skips:
        step()
