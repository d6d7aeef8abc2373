"""One device trains a model for some steps, with one way or another to save memory: what it held, what it learnt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import thread_time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.gauges.allocated import saved_bytes
from course_lib.savers.rounding import Bf16Weights, Rounding
from course_lib.training.batches import Batches
from course_lib.training.step import storage_bytes


@dataclass(frozen=True, kw_only=True)
class PlainRun:
    """The loss of every step, and bytes: what lasts from step to step, gradients too, and what waits for backward.

    Units: `seconds` are this thread's own.
    """

    losses: tuple[float, ...]
    lasting_bytes: int
    waiting_bytes: int
    seconds: float


def plain_run(
    model: nn.Module,
    batches: Batches,
    *,
    steps: int,
    rate: float,
    rounding: Rounding = "nearest",
    autocast: bool = False,
    optimizer: Callable[..., Optimizer] = torch.optim.AdamW,
) -> PlainRun:
    """Train what is trained in `model`, in the dtype that it has; `rounding` is for a model in bf16.

    With `autocast` products are computed in bf16, whatever the weights have.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    rounded = Bf16Weights(weights, rounding)
    stepper = optimizer(rounded.trained, lr=rate)
    loss_of = partial(_loss, model, batches, autocast)
    waiting = saved_bytes(model, partial(loss_of, 0))
    losses, begin = [], thread_time()
    for step in range(steps):
        model.zero_grad()
        loss = loss_of(step)
        loss.backward()
        losses.append(loss.detach())
        rounded.before()
        stepper.step()
        rounded.after()
    seconds = thread_time() - begin
    return PlainRun(
        losses=tuple(loss.item() for loss in losses),
        lasting_bytes=storage_bytes(_lasting(model, weights, rounded, stepper)),
        waiting_bytes=waiting,
        seconds=seconds,
    )


def _loss(model: nn.Module, batches: Batches, autocast: bool, step: int) -> Tensor:
    """The mean over a batch's tokens, in float32."""
    inputs, targets = batches.batch(step)
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=autocast):
        logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _lasting(model: nn.Module, weights: Sequence[Tensor], rounded: Bf16Weights, stepper: Optimizer) -> list[Any]:
    """Weights and codes, gradients, precise copies if there are some, and the optimizer's states but its counters."""
    states = [x for state in stepper.state.values() for x in state.values() if torch.is_tensor(x) and x.dim()]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    return [*model.parameters(), *model.buffers(), *gradients, *states, *rounded.trained]
