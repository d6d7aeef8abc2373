"""What the ladder sees of a trainer before, between and after its first steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from course_lib.training.step import state_bytes
from course_lib.training.trainer import Trainer
from course_lib.verify.alike import SGD, Plan, born_with, plan_batch
from course_lib.verify.trainable import InParts, Make, Trainable

_LOOKS = 2  # steps whose gradients are kept


class Look:
    """To be called in each step, when its gradients are there: keeps the first two steps', and what the first left."""

    def __init__(self, trainer: Trainable, rate: float) -> None:
        self.trainer, self.rate = trainer, rate
        self.reads = hides_gradients(trainer)
        self.start = state_of(trainer)
        self.gradients: list[dict[str, Tensor]] = []
        self.after_first: dict[str, Tensor] = {}
        self.peak_bytes = 0
        self._calls = 0

    def __call__(self) -> None:
        """Look once."""
        self._calls += 1
        self.peak_bytes = max(self.peak_bytes, state_bytes(_held(self.trainer)))
        if self._calls > _LOOKS:
            return
        # A step that can be taken apart is seen before its update, so what the first left is seen in the second.
        first_is_over = self._calls == (2 if isinstance(self.trainer, InParts) else 1)
        now: dict[str, Tensor] = {}
        if self.reads or first_is_over:
            now = state_of(self.trainer)
        if self.reads:
            before = self.after_first or self.start
            weights = {name: now[name] for name in self.trainer.parameters()}
            self.gradients.append(read_gradients(before, weights, self.rate))
        else:
            self.gradients.append(copied(self.trainer.gradients()))  # type: ignore[attr-defined]
        if first_is_over:
            self.after_first = now


def hides_gradients(trainer: Trainable) -> bool:
    """Whether its gradients must be read from what a step of plain SGD does."""
    return not hasattr(trainer, "gradients")


def read_gradients(before: Mapping[str, Tensor], after: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """What plain SGD must have subtracted; weights round it, by up to eps |w| / rate."""
    read = {}
    for name, x in after.items():
        if x.is_floating_point():
            read[name] = (before[name] - x) / rate
    return read


def at_half_the_rate(make: Make, plan: Plan, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A second trainer's weights, and its first gradient, read from a step of half the size: the same, if it is SGD."""
    config = replace(SGD, learning_rate=SGD.learning_rate / 2)
    with born_with(seed, plan.dtype):
        trainer = make(config)
        before = copied(trainer.parameters())
        trainer.step(plan_batch(plan, 0))
        return before, read_gradients(before, trainer.parameters(), config.learning_rate)


def norm_of(gradients: Iterable[Tensor]) -> float:
    """The length of all of them as one vector."""
    lengths = [gradient.double().norm() for gradient in gradients]
    return torch.stack(lengths).norm().item()


def state_of(trainer: Trainable) -> dict[str, Tensor]:
    """Copies of parameters and buffers."""
    buffers = trainer.buffers() if hasattr(trainer, "buffers") else {}
    return copied(trainer.parameters() | buffers)


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same names with tensors that later steps do not change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _held(trainer: Trainable) -> Iterable[nn.Parameter]:
    """The parameters that a rank keeps, as far as they are known."""
    held: list[nn.Parameter] = []
    model = getattr(trainer, "model", None)
    if isinstance(model, nn.Module):
        held += model.parameters()
    if isinstance(trainer, Trainer):
        held += trainer.local.parameters.values()
    return held
