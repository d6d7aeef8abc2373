"""Train a few SGD steps and keep what the comparison needs, on one device or as one of several ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.training.batches import Batch, Batches
from course_lib.training.step import compute_gradients, sgd_update, state_bytes

Hook = Callable[[nn.Module], None]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model, its data, and how long to train it."""

    make_model: Callable[[], nn.Module]
    batches: Batches
    steps: int = 3
    learning_rate: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Technique:
    """What a rank does beyond the plain loop: once when its model stands, and after each backward pass."""

    prepare: Hook
    after_backward: Hook


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one run left behind; gradients are those of the first step."""

    losses: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    peak_state_bytes: int
    step_s: float  # median


ALONE = Technique(prepare=lambda model: None, after_backward=lambda model: None)


def train(experiment: Experiment, technique: Technique, seed: int, batch_of: Callable[[int], Batch]) -> Trace:
    """Run the loop: `batch_of(step)` gives the sequences, `seed` the weights that the model is born with."""
    torch.manual_seed(seed)
    model = experiment.make_model()
    technique.prepare(model)
    losses: list[float] = []
    seconds: list[float] = []
    gradients: dict[str, Tensor] = {}
    peak_bytes = 0
    for step in range(experiment.steps):
        started = time.perf_counter()
        losses.append(compute_gradients(model, batch_of(step)))
        technique.after_backward(model)
        peak_bytes = max(peak_bytes, state_bytes(model))
        gradients = gradients or copies_of_gradients(model)
        sgd_update(model, experiment.learning_rate)
        seconds.append(time.perf_counter() - started)
    return Trace(
        losses=losses,
        gradients=gradients,
        parameters={name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        peak_state_bytes=peak_bytes,
        step_s=median(seconds),
    )


def train_alone(experiment: Experiment) -> Trace:
    """One device, the whole batch, the weights of rank 0."""
    return train(experiment, ALONE, seed=0, batch_of=experiment.batches.batch)


def train_rank(experiment: Experiment, technique: Technique) -> Trace:
    """This rank's share of the batch; every rank is seeded differently, so equal weights are not luck."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return train(experiment, technique, rank, lambda step: experiment.batches.shard(step, rank, world_size))


def copies_of_gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients by name; a parameter without one is left out."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
