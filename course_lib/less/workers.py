"""The laboratory: many workers on one small problem, and all of them rows of one tensor.

A row of the models is one worker's, on one seed. The loss is a sum over rows, and each term depends on its own row
alone; so one call of autograd gives every worker's gradient on every seed, without a loop and without ranks.

The problem: which of ten classes a random network puts points of a normal distribution into, learnt by a network with
one hidden layer. Either each worker has its share of all points, or the points lie sorted by their label, so that one
worker hardly sees what another sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.errors import four_parts

_INPUTS, _HIDDEN, _CLASSES = 20, 64, 10
_POINTS, _TEST_POINTS, _TEACHER = 4096, 2000, 32

SHAPES: tuple[tuple[int, ...], ...] = ((_INPUTS, _HIDDEN), (_HIDDEN,), (_HIDDEN, _CLASSES), (_CLASSES,))
SIZE = sum(math.prod(shape) for shape in SHAPES)  # numbers of a model: 1994


class Problem(Protocol):
    """What the laboratory's methods are tried on. Shapes: models (seeds, size) shared, or (seeds, workers, size)."""

    @property
    def workers(self) -> int:
        """How many there are."""

    @property
    def start(self) -> Tensor:
        """The first model of each seed. Shapes: (seeds, size)."""

    def gradients(self, models: Tensor) -> Tensor:
        """Each worker's gradient at the model it holds, on points it draws. Shapes: -> (seeds, workers, size)."""

    def loss(self, model: Tensor) -> Tensor:
        """Over what all workers have. Shapes: (seeds, size) -> (seeds,)."""


class _Points(NamedTuple):
    inputs: Tensor  # (..., points, inputs)
    labels: Tensor  # (..., points)


@dataclass(kw_only=True)
class Workers:
    """The classifier: `workers` of them on each of the `seeds`; every gradient is that of `batch` points.

    Every instance draws the same points in the same order: for a fair comparison make a new one for each run.
    """

    seeds: int = 5
    workers: int = 8
    batch: int = 4
    sorted_by_label: bool = False
    start: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if min(self.seeds, self.batch) < 1 or not 1 <= self.workers <= _POINTS:
            values = f"seeds={self.seeds}, workers={self.workers}, batch={self.batch}"
            rule = f"each of the workers has some of the {_POINTS} points"
            raise ValueError(four_parts("Workers", values, rule, "give at least one of each"))
        draws = torch.Generator().manual_seed(0)
        label = _teacher(draws)
        points, self._test = label(_POINTS), label(_TEST_POINTS)
        mixed = torch.randperm(_POINTS, generator=draws)
        order = points.labels.argsort(stable=True) if self.sorted_by_label else mixed
        self._all = _Points(points.inputs[order], points.labels[order])
        self._draws = torch.Generator().manual_seed(1)
        self.start = torch.stack([_first_model(100 + seed) for seed in range(self.seeds)])

    def gradients(self, models: Tensor) -> Tensor:
        """Each worker's gradient on points that it draws anew. Shapes: as `Problem.gradients`."""
        if models.dim() == 2:
            models = models[:, None].expand(-1, self.workers, -1)
        rows = models.detach().clone().requires_grad_()
        inputs, labels = self._batches()
        losses = F.cross_entropy(_forward(rows, inputs).flatten(0, 2), labels.flatten(), reduction="sum")
        return torch.autograd.grad(losses / self.batch, rows)[0]

    def loss(self, model: Tensor) -> Tensor:
        """Over all workers' points. Shapes: (seeds, size) -> (seeds,)."""
        scores = _forward(model, self._all.inputs)  # (seeds, points, classes)
        labels = self._all.labels.expand(len(model), -1)
        return F.cross_entropy(scores.transpose(1, 2), labels, reduction="none").mean(1)

    def accuracy(self, model: Tensor) -> Tensor:
        """Over points that no worker has. Shapes: (seeds, size) -> (seeds,)."""
        right = _forward(model, self._test.inputs).argmax(-1) == self._test.labels
        return right.float().mean(1)

    def _batches(self) -> _Points:
        """Some of its own points for each worker. Shapes: (seeds, workers, batch, inputs), (seeds, workers, batch)."""
        share = _POINTS // self.workers
        drawn = torch.randint(0, share, (self.seeds, self.workers, self.batch), generator=self._draws)
        places = drawn + share * torch.arange(self.workers)[:, None]
        return _Points(self._all.inputs[places], self._all.labels[places])


def _teacher(draws: torch.Generator) -> Callable[[int], _Points]:
    """A random network, as a function that draws so many points and labels them."""
    first = torch.randn(_INPUTS, _TEACHER, generator=draws)
    second = torch.randn(_TEACHER, _CLASSES, generator=draws)

    def label(points: int) -> _Points:
        inputs = torch.randn(points, _INPUTS, generator=draws)
        return _Points(inputs, (torch.tanh(inputs @ first) @ second).argmax(1))

    return label


def _first_model(seed: int) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    matrices = [torch.randn(shape, generator=draws) / shape[0] ** 0.5 for shape in SHAPES if len(shape) == 2]
    return torch.cat([matrices[0].flatten(), torch.zeros(_HIDDEN), matrices[1].flatten(), torch.zeros(_CLASSES)])


def _forward(models: Tensor, inputs: Tensor) -> Tensor:
    """Shapes: models (..., size), inputs (..., points, inputs) -> (..., points, classes)."""
    tensors = models.split([math.prod(shape) for shape in SHAPES], -1)
    first, bias, second, last = (x.unflatten(-1, shape) for x, shape in zip(tensors, SHAPES, strict=True))
    hidden = torch.relu(inputs @ first + bias.unsqueeze(-2))
    return hidden @ second + last.unsqueeze(-2)
