"""What one device does again when ranks were wrong: rows of a batch alone, and AdamW with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from course_lib.config import TrainConfig
from course_lib.training.batches import Batch
from course_lib.training.step import count_targets
from course_lib.training.trainer import Trainer
from course_lib.verify.alike import SGD, Plan, born_with, plan_batch
from course_lib.verify.look import Look, copied
from course_lib.verify.trainable import InParts, Make, Trainable

_MOST_NUMBERS = 50_000_000  # of all rows' gradients together; a larger model is not taken apart


class Reconfigured:
    """A change of anybody's trainer: fields of its configuration, each made anew from the whole."""

    def __init__(self, **fields: Callable[[TrainConfig], Any]) -> None:
        self.fields = fields

    def of(self, config: TrainConfig) -> TrainConfig:
        """The configuration with the change."""
        return replace(config, **{name: new(config) for name, new in self.fields.items()})


Edit = Callable[[Trainer], object]  # of one of ours that has just been made, or that has just loaded
Change = Edit | Reconfigured


class Replay:
    """Experiments with the reference, each from the beginning and on one device."""

    def __init__(self, reference: Make, plan: Plan) -> None:
        self.reference, self.plan = reference, plan
        self._gradients: dict[int, dict[str, Tensor] | None] = {}
        self._ends: dict[tuple[Change, bool], dict[str, Tensor] | None] = {}

    def row_gradients(self, step: int = 0) -> dict[str, Tensor] | None:
        """Of each row of a step's batch the gradient of its summed loss; None if the rows cannot be taken apart.

        Shapes: by name (B, ...).
        """
        if step not in self._gradients:
            try:
                self._gradients[step] = self._taken_apart(step)
            except (ValueError, RuntimeError):  # a layer that needs several rows
                self._gradients[step] = None
        return self._gradients[step]

    def _taken_apart(self, step: int) -> dict[str, Tensor] | None:
        inputs, targets = plan_batch(self.plan, step)
        with born_with(0, self.plan.dtype):
            weights = self._trained(step).parameters()
        if len(inputs) * sum(weight.numel() for weight in weights.values()) > _MOST_NUMBERS:
            return None
        found: dict[str, list[Tensor]] = {name: [] for name in weights}
        rows = [(inputs[row : row + 1], targets[row : row + 1]) for row in range(len(inputs))]
        for row, (_, held) in zip(rows, self._each(rows, step), strict=True):
            for name, weight in weights.items():
                gradient = held.get(name)
                found[name].append(torch.zeros_like(weight) if gradient is None else gradient * count_targets(row))
        return {name: torch.stack(each) for name, each in found.items()}

    def losses(self, parts: int, step: int = 0) -> list[float]:
        """The mean loss of each of `parts` of the first batch; a part without targets has none."""
        return [loss for loss, _ in self._each(self.parts(parts, step), 0)]

    def _trained(self, steps: int) -> Trainable:
        """The reference after so many steps of SGD."""
        trainer = self.reference(SGD)
        for number in range(steps):
            trainer.step(plan_batch(self.plan, number))
        return trainer

    def _each(self, batches: Sequence[Batch], step: int) -> Iterator[tuple[float, dict[str, Tensor]]]:
        """Of each batch alone the mean loss and the gradients, if it has targets, with the weights before a step."""
        with born_with(0, self.plan.dtype):
            trainer = self._trained(step)
            for batch in batches:
                if not count_targets(batch):
                    yield 0.0, {}
                elif isinstance(trainer, InParts):
                    loss = trainer.compute_gradients(batch)
                    yield loss, copied(trainer.gradients())
                    trainer.zero_grad()
                else:
                    torch.manual_seed(0)
                    trainer = self._trained(step)
                    look = Look(trainer, SGD.learning_rate)
                    whole = trainer.step(batch)
                    look()
                    yield whole or 0.0, look.gradients[0]

    def parts(self, parts: int, step: int = 0) -> list[Batch]:
        """A batch as the ranks share it."""
        inputs, targets = plan_batch(self.plan, step)
        return list(zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True))

    @cached_property
    def is_random(self) -> bool:
        """Whether one device gives two outputs for one batch."""
        with born_with(0, self.plan.dtype):
            output, inputs = _output_of(self.reference(SGD)), plan_batch(self.plan, 0)[0]
            return not torch.equal(output(inputs), output(inputs))

    def mixes_rows(self, parts: int) -> bool:
        """Whether a row's output on one device depends on the rows beside it."""
        with born_with(0, self.plan.dtype):
            output = _output_of(self.reference(SGD))
            whole = output(plan_batch(self.plan, 0)[0])
            try:
                alone = torch.cat([output(inputs) for inputs, _ in self.parts(parts)])
            except (ValueError, RuntimeError):
                return True
        return not torch.allclose(alone, whole, rtol=1e-3, atol=1e-3 * whole.abs().max().item())

    def adamw(self, change: Change, *, late: bool = False) -> dict[str, Tensor] | None:
        """The weights that AdamW leaves on one device with one thing changed: from the start, or half-way.

        None for a trainer that is not ours, if more than its configuration would have to be changed.
        """
        if (change, late) not in self._ends:
            self._ends[change, late] = self._adamw(change, late)
        return self._ends[change, late]

    def _adamw(self, change: Change, late: bool) -> dict[str, Tensor] | None:
        assert self.plan.adamw is not None
        k = self.plan.steps
        with born_with(0, self.plan.dtype):
            if isinstance(change, Reconfigured):
                trainer, edit = self.reference(change.of(self.plan.adamw)), None
            else:
                trainer, edit = self.reference(self.plan.adamw), change
            if edit and not isinstance(trainer, Trainer):
                return None
            for number in range(2 * k if late else k):
                if edit and isinstance(trainer, Trainer) and number == (k if late else 0):
                    edit(trainer)
                trainer.step(plan_batch(self.plan, number))
            return copied(trainer.parameters())


def _output_of(trainer: Trainable) -> Callable[[Tensor], Tensor]:
    """Its method; asked for where a rung has used it."""
    return trainer.output  # type: ignore[attr-defined]
