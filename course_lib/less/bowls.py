"""Workers with a quadratic each, whose optimum is known: what averaging does without a network's noise.

f_i(x) = 1/2 sum_k h_ik (x_k - b_ik)^2. The bowls' curvatures h differ as well as their middles b: with equal curvatures
the mean of the models would descend as if all were one, on any topology, and there would be nothing to see.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_lib.errors import four_parts


@dataclass(kw_only=True)
class Bowls:
    """`apart` is how far the bowls' middles lie from each other, `noise` the root of the variance of a gradient.

    Shapes: curvatures and middles float64 (workers, size).
    """

    workers: int = 16
    seeds: int = 1
    size: int = 10
    apart: float = 1.0
    noise: float = 0.0
    curvatures: Tensor = field(init=False, repr=False)
    middles: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if min(self.workers, self.seeds, self.size) < 1:
            values = f"workers={self.workers}, seeds={self.seeds}, size={self.size}"
            raise ValueError(four_parts("Bowls", values, "each worker has a bowl", "give at least one of each"))
        fixed, shape = torch.Generator().manual_seed(0), (self.workers, self.size)
        self.curvatures = (0.5 * torch.randn(shape, generator=fixed, dtype=torch.float64)).exp().clamp(0.2, 2.0)
        self.middles = self.apart * torch.randn(shape, generator=fixed, dtype=torch.float64)
        self._draws = torch.Generator().manual_seed(1)

    @property
    def start(self) -> Tensor:
        """Far from all middles. Shapes: (seeds, size)."""
        return torch.full((self.seeds, self.size), 3.0, dtype=torch.float64)

    @property
    def optimum(self) -> Tensor:
        """Of the mean of all bowls. Shapes: (size,)."""
        return (self.curvatures * self.middles).sum(0) / self.curvatures.sum(0)

    def gradients(self, models: Tensor) -> Tensor:
        """Shapes: (seeds, size) or (seeds, workers, size) -> (seeds, workers, size)."""
        if models.dim() == 2:
            models = models[:, None]
        exact = self.curvatures * (models - self.middles)
        wrong = torch.randn(exact.shape, generator=self._draws, dtype=torch.float64)
        return exact + self.noise / self.size**0.5 * wrong

    def loss(self, model: Tensor) -> Tensor:
        """How far the mean of all bowls is above its least. Shapes: (seeds, size) -> (seeds,)."""
        return (self.curvatures.mean(0) * (model - self.optimum) ** 2).sum(-1) / 2
