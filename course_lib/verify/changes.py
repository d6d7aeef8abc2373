"""What can go wrong with AdamW, as changes of a trainer on one device: the ladder tries them when ranks were wrong."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from course_lib.training.batches import Batch
from course_lib.training.step import count_targets
from course_lib.training.trainer import Trainer, make_optimizer
from course_lib.verify.replay import Change, Reconfigured

_MILLIONTH = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds

no_clipping = Reconfigured(max_norm=lambda config: None)  # gradients stay as long as they are
no_decay = Reconfigured(weight_decay=lambda config: 0.0)
default_eps = Reconfigured(adam_eps=lambda config: 1e-8)


def scaled_limit(factor: float) -> Change:
    """Gradients may be so many times as long."""
    return Reconfigured(max_norm=lambda config: None if config.max_norm is None else config.max_norm * factor)


def scaled_rate(factor: float) -> Change:
    """The learning rate times a number."""
    return Reconfigured(learning_rate=lambda config: config.learning_rate * factor)


def no_clamp(trainer: Trainer) -> None:
    """Short gradients are made longer."""

    def clip() -> float:
        norm = trainer.local.global_norm().item()
        for gradient in trainer.local.gradients().values():
            gradient.mul_((trainer.config.max_norm or norm) / norm)
        return norm

    trainer.clip = clip  # type: ignore[method-assign]


def clip_as_torch(trainer: Trainer) -> None:
    """By a norm that is a millionth too long, so that nothing divides by zero."""

    def clip() -> float:
        norm = trainer.local.global_norm().item()
        for gradient in trainer.local.gradients().values():
            gradient.mul_(min(1.0, (trainer.config.max_norm or math.inf) / (norm + _MILLIONTH)))
        return norm

    trainer.clip = clip  # type: ignore[method-assign]


def clip_each(trainer: Trainer) -> None:
    """Each parameter's gradient by its own norm."""

    def clip() -> float:
        for gradient in trainer.local.gradients().values():
            gradient.mul_(min(1.0, (trainer.config.max_norm or math.inf) / max(gradient.norm().item(), 1e-30)))
        return trainer.local.global_norm().item()

    trainer.clip = clip  # type: ignore[method-assign]


def clip_value(trainer: Trainer) -> None:
    """Each number of a gradient by itself."""

    def clip() -> float:
        most = trainer.config.max_norm or math.inf
        for gradient in trainer.local.gradients().values():
            gradient.clamp_(-most, most)
        return trainer.local.global_norm().item()

    trainer.clip = clip  # type: ignore[method-assign]


def clip_shares(n_shares: int) -> Change:
    """Each share's gradient by its own norm, before they are averaged."""

    def change(trainer: Trainer) -> None:
        whole = trainer.compute_gradients

        def compute(batch: Batch) -> float:
            targets, loss = count_targets(batch), 0.0
            total: dict[str, Tensor] = {}
            for part in zip(*(x.tensor_split(n_shares) for x in batch), strict=True):
                if not (mine := count_targets(part)):
                    continue
                loss += whole(part) * mine / targets
                gradients = trainer.local.gradients()
                for gradient in gradients.values():
                    gradient.mul_(n_shares * mine / targets)
                factor = min(1.0, (trainer.config.max_norm or math.inf) / trainer.local.global_norm().item())
                for name, gradient in gradients.items():
                    total[name] = total.get(name, torch.zeros_like(gradient)) + gradient * (factor / n_shares)
                trainer.zero_grad()
            for name, gradient in total.items():
                trainer.local.parameters[name].grad = gradient
            return loss

        trainer.compute_gradients = compute  # type: ignore[method-assign]

    return change


def option(**options: object) -> Change:
    """An option of the optimizer."""
    return lambda trainer: [group.update(options) for group in trainer.optimizer.param_groups]


def coupled_decay(trainer: Trainer) -> None:
    """Adam, where weight decay is a part of the gradient."""
    group = trainer.optimizer.param_groups[0]
    options = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
    trainer.optimizer = torch.optim.Adam(group["params"], **options)


def decay_of_matrices(trainer: Trainer) -> None:
    """Vectors do not decay."""
    group = trainer.optimizer.param_groups[0]
    vectors = {**group, "params": [p for p in group["params"] if p.dim() < 2], "weight_decay": 0.0}
    group["params"] = [p for p in group["params"] if p.dim() >= 2]
    trainer.optimizer.add_param_group(vectors)


def new_optimizer(trainer: Trainer) -> None:
    """All states are lost."""
    trainer.optimizer = make_optimizer([trainer.local.parameters[name] for name in trainer.trained], trainer.config)


def new_optimizer_each_step(trainer: Trainer) -> None:
    """States never last."""
    update = trainer.update

    def updated() -> None:
        new_optimizer(trainer)
        update()

    trainer.update = updated  # type: ignore[method-assign]


def lost_of(names: frozenset[str]) -> Change:
    """The states of these parameters are lost."""

    def change(trainer: Trainer) -> None:
        for name in names:
            trainer.optimizer.state.pop(trainer.local.parameters[name], None)

    return change


def lost(*kinds: str) -> Change:
    """These states begin at zero."""

    def change(trainer: Trainer) -> None:
        for state in trainer.optimizer.state.values():
            for kind in kinds:
                state[kind].zero_()

    return change
