"""One device's training, step by step. A parallel technique is a subclass that overrides what it does differently."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.config import TrainConfig
from course_lib.errors import four_parts
from course_lib.training import step as steps
from course_lib.training.batches import IGNORED, Batch

FILE = "trainer.pt"


class Trainer:
    """Trains `model` on whole batches.

    Under a parallel technique every method is called on all ranks, each with the whole batch: the trainer takes its
    own share. `module` is the model under its own names; `model` is what is called, wrapped or not.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.config = config
        self.module = model
        self.model = self.wrap(model)
        check_trained(self.module)
        self.optimizer = make_optimizer(self.model, config)

    def wrap(self, model: nn.Module) -> nn.Module:
        """What stands between the trainer and the model: nothing on one device."""
        return model

    @property
    def n_microbatches(self) -> int:
        """Into how many parts a rank cuts its share of a batch."""
        return self.config.accumulation

    @torch.no_grad()
    def output(self, inputs: Tensor) -> Tensor:
        """The model's output for the whole batch, on every rank."""
        return self.model(inputs)

    def compute_gradients(self, batch: Batch) -> float:
        """Add the gradients of the whole batch's mean loss to `.grad`, and return that loss.

        Raises: ValueError if the batch has no target, or its loss is not finite.
        """
        total = steps.count_targets(batch)
        check_counts([len(batch[0])], [total])
        summed = 0.0
        for part in steps.micro_batches(batch, self.config.accumulation):
            loss = steps.summed_loss(self.model, part)
            summed += loss.item()
            check_losses([summed])
            (loss / total).backward()
        return summed / total

    def gradients(self) -> dict[str, Tensor]:
        """The gradients that there are, whole, by the model's own names."""
        return {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}

    def parameters(self) -> dict[str, Tensor]:
        """The weights, whole, by the model's own names; tied ones once."""
        return {name: p.detach() for name, p in self.module.named_parameters()}

    def buffers(self) -> dict[str, Tensor]:
        """The buffers by the model's own names."""
        return dict(self.module.named_buffers())

    def clip(self) -> float:
        """Scale the gradients down to the global norm `config.max_norm`, if it is given; return the norm before."""
        norm = steps.gradient_norm(self.module.parameters())
        if self.config.max_norm is not None:
            factor = (self.config.max_norm / norm).clamp(max=1.0)
            for gradient in self.gradients().values():
                gradient.mul_(factor)
        return norm.item()

    def update(self) -> None:
        """Let the optimizer use the gradients, then drop them."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, batch: Batch) -> float:
        """Train on one batch and return its mean loss per target."""
        loss = self.compute_gradients(batch)
        self.clip()
        self.update()
        return loss

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: weights and buffers by the model's own names, and the optimizer's state."""
        return {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        self.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])

    def save(self, folder: str | Path) -> None:
        """Write `state`; an interrupted write leaves the file that was there."""
        write(self.state(), folder)

    def load(self, folder: str | Path) -> None:
        """Go on from what `save` wrote.

        Raises: ValueError if there is nothing.
        """
        path = Path(folder) / FILE
        if not path.exists():
            rule, way_out = f"a checkpoint is a file {FILE}", "give the folder that was given to save"
            raise ValueError(four_parts("Trainer.load", f"no {path}", rule, way_out))
        self.restore(torch.load(path, map_location="cpu", weights_only=True))


def write(content: dict[str, Any], folder: str | Path) -> None:
    """Write a checkpoint in one go: what is unfinished has another name."""
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        torch.save(content, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The configured optimizer over what is not frozen; there may be nothing, on a rank with a frozen part."""
    trained = [{"params": [parameter for parameter in model.parameters() if parameter.requires_grad]}]
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=rate, weight_decay=decay, eps=config.adam_eps)
    return torch.optim.SGD(trained, lr=rate, weight_decay=decay)


def check_trained(model: nn.Module) -> None:
    """Raise the four-part error if everything is frozen."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        rule, way_out = "an optimizer needs something to train", "set requires_grad on at least one parameter"
        raise ValueError(four_parts("Trainer", "every parameter is frozen", rule, way_out))


def check_counts(rows: Sequence[float], targets: Sequence[float]) -> None:
    """Raise the four-part error if a rank has no rows, or all ranks together no target."""
    empty = [rank for rank, number in enumerate(rows) if not number]
    if empty:
        values = f"{int(sum(rows))} samples on {len(rows)} rank{'s' * (len(rows) > 1)}, none on {ranks_in_words(empty)}"
        raise ValueError(four_parts("Trainer", values, "every rank needs a sample", "give at least one for each rank"))
    if not sum(targets):
        values, way_out = f"{int(sum(rows))} samples without a target", f"mark fewer targets as {IGNORED}"
        raise ValueError(four_parts("Trainer", values, "the mean loss is taken over the targets that count", way_out))


def check_losses(losses: Sequence[float]) -> None:
    """Raise the four-part error, naming the ranks, if a loss is not finite."""
    bad = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        values = f"loss {losses[bad[0]]} on {ranks_in_words(bad)}"
        rule = "one such loss would spoil the weights of all ranks"
        raise ValueError(four_parts("Trainer", values, rule, "look at that rank's batch, or lower the learning rate"))


def ranks_in_words(ranks: Sequence[int]) -> str:
    """rank 2, or ranks 1, 2."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
