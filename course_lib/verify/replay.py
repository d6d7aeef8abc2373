"""What one device does again when ranks were wrong: rows of a batch alone, and AdamW with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from course_lib.training.batches import Batch
from course_lib.training.step import count_targets
from course_lib.training.trainer import Trainer
from course_lib.verify.climb import SGD, Make, Plan, born_with, plan_batch

_MOST_NUMBERS = 50_000_000  # of all rows' gradients together; a larger model is not taken apart
Change = Callable[[Trainer], object]  # of a trainer that has just been made, or that has just loaded


class Replay:
    """Experiments with the reference, each from the beginning and on one device."""

    def __init__(self, reference: Make, plan: Plan) -> None:
        self.reference, self.plan = reference, plan
        self._gradients: dict[int, dict[str, Tensor] | None] = {}
        self._ends: dict[tuple[Change, bool], dict[str, Tensor]] = {}

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
        with born_with(0, self.plan.dtype):
            trainer = self.reference(SGD)
            for number in range(step):
                trainer.step(plan_batch(self.plan, number))
            batch = plan_batch(self.plan, step)
            trained = {name: trainer.local.parameters[name] for name in trainer.trained}
            if len(batch[0]) * sum(parameter.numel() for parameter in trained.values()) > _MOST_NUMBERS:
                return None
            found: dict[str, list[Tensor]] = {name: [] for name in trained}
            for row in range(len(batch[0])):
                one = batch[0][row : row + 1], batch[1][row : row + 1]
                targets = count_targets(one)
                if targets:
                    trainer.compute_gradients(one)
                held = trainer.gradients()
                for name, parameter in trained.items():
                    found[name].append(held[name] * targets if name in held else torch.zeros_like(parameter.detach()))
                trainer.zero_grad()
            return {name: torch.stack(rows) for name, rows in found.items()}

    def losses(self, parts: int, step: int = 0) -> list[float]:
        """The mean loss of each of `parts` of the first batch; a part without targets has none."""
        with born_with(0, self.plan.dtype):
            trainer = self.reference(SGD)
            found = []
            for part in self.parts(parts, step):
                found.append(trainer.compute_gradients(part) if count_targets(part) else 0.0)
                trainer.zero_grad()
            return found

    def parts(self, parts: int, step: int = 0) -> list[Batch]:
        """A batch as the ranks share it."""
        inputs, targets = plan_batch(self.plan, step)
        return list(zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True))

    @cached_property
    def is_random(self) -> bool:
        """Whether one device gives two outputs for one batch."""
        with born_with(0, self.plan.dtype):
            trainer, inputs = self.reference(SGD), plan_batch(self.plan, 0)[0]
            return not torch.equal(trainer.output(inputs), trainer.output(inputs))

    def mixes_rows(self, parts: int) -> bool:
        """Whether a row's output on one device depends on the rows beside it."""
        with born_with(0, self.plan.dtype):
            trainer = self.reference(SGD)
            whole = trainer.output(plan_batch(self.plan, 0)[0])
            try:
                alone = torch.cat([trainer.output(inputs) for inputs, _ in self.parts(parts)])
            except (ValueError, RuntimeError):
                return True
        return not torch.allclose(alone, whole, rtol=1e-3, atol=1e-3 * whole.abs().max().item())

    def adamw(self, change: Change, *, late: bool = False) -> dict[str, Tensor]:
        """The weights that AdamW leaves on one device with one thing changed: from the start, or half-way."""
        if (change, late) not in self._ends:
            self._ends[change, late] = self._adamw(change, late)
        return self._ends[change, late]

    def _adamw(self, change: Change, late: bool) -> dict[str, Tensor]:
        assert self.plan.adamw is not None
        k = self.plan.steps
        with born_with(0, self.plan.dtype):
            trainer = self.reference(self.plan.adamw)
            for number in range(2 * k if late else k):
                if number == (k if late else 0):
                    change(trainer)
                trainer.step(plan_batch(self.plan, number))
            return {name: tensor.clone() for name, tensor in trainer.parameters().items()}
