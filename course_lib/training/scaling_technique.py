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

_SCALE, _GOOD = "loss_scale", "good_steps"  # among the optimizer's options, which every checkpoint has


def scaled_loss(scaler: LossScaler) -> Technique:
    """Multiply the loss that is differentiated by the scaler's number, and the gradients by its inverse at the end.

    A step has one backward: gradients that were there before would be divided as well. The scale is kept with the
    optimizer's options, so that a run which goes on from a checkpoint has it.
    Cost: an all-reduce of one number in each step, over all ranks.
    """

    def apply(setup: Setup) -> None:
        setup.begin("scaled_loss")
        ends, local, shared = setup.engine.ends, setup.local, setup.shared
        before, updated = ends.around, ends.updated
        stepping: list[Optimizer] = []

        @contextmanager
        def around() -> Iterator[None]:
            with before():
                yield
            scaler.unscale_(local.gradients().values(), local.everyone)

        def skipping(optimizer: Optimizer) -> Optimizer:
            made = shared(optimizer)
            made.step = partial(_step, scaler, made, made.step)  # type: ignore[method-assign, assignment]
            _note(scaler, made)
            stepping.append(made)
            return made

        def told() -> None:
            """A checkpoint may have been read."""
            updated()
            for made in stepping:
                scaler.scale, scaler.good = (made.param_groups[0][name] for name in (_SCALE, _GOOD))

        ends.around, ends.factor, ends.updated, setup.shared = around, lambda: scaler.scale, told, skipping

    return apply


def _step(scaler: LossScaler, optimizer: Optimizer, step: Callable[[], Any]) -> None:
    if not scaler.skips:
        step()
    _note(scaler, optimizer)


def _note(scaler: LossScaler, optimizer: Optimizer) -> None:
    optimizer.param_groups[0].update({_SCALE: scaler.scale, _GOOD: scaler.good})
