"""Parallel SGD on a problem whose every constant is known, to hold the theorem's linear speed-up against a run.

N workers stand at the same x. Each draws its own noisy gradient; all step along the average. With a smooth f, noise
of variance at most sigma^2 per worker, and the right stepsize, T steps reach

    mean over the steps of |grad f(x_k)|^2  <=  2 sqrt(2 L D sigma^2 / (N T))        D = f(x_0) - min f

once T is past the transient, 2 L D N / sigma^2. So a goal is reached in 1/N of the steps: the linear speed-up. Before
the transient ends the stepsize is capped at 1/L, and more workers help less.

Source: Ghadimi and Lan 2013, Theorem 2.1, with the variance of an average of N workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.errors import four_parts


@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """f(x) = 1/2 sum_i h_i x_i^2 with curvatures h_i from 0.01 to 1, started where every x_i is 1."""

    size: int = 32
    sigma: float = 1.0  # root of the variance of one worker's gradient, over all its entries together

    def __post_init__(self) -> None:
        if self.size < 2 or not self.sigma > 0:
            values, rule = f"size={self.size}, sigma={self.sigma}", "two curvatures at least, and noise"
            raise ValueError(four_parts("Quadratic", values, rule, "give size >= 2 and sigma > 0"))

    @property
    def curvatures(self) -> Tensor:
        """The h_i, in float64."""
        return torch.logspace(-2, 0, self.size, dtype=torch.float64)

    @property
    def smoothness(self) -> float:
        """L, the largest curvature."""
        return self.curvatures.max().item()

    @property
    def distance(self) -> float:
        """D = f(x_0) - min f."""
        return self.curvatures.sum().item() / 2


def stepsize(problem: Quadratic, workers: int, steps: int) -> float:
    """The stepsize that minimises the theorem's bound: it grows as sqrt(N/T), and never exceeds 1/L."""
    best = math.sqrt(2 * problem.distance * workers / (problem.smoothness * steps)) / problem.sigma
    return min(1 / problem.smoothness, best)


def bound(problem: Quadratic, workers: int, steps: int) -> float:
    """What the theorem promises for the mean squared gradient: 2 D / (gamma T) + gamma L sigma^2 / N."""
    gamma = stepsize(problem, workers, steps)
    return 2 * problem.distance / (gamma * steps) + gamma * problem.smoothness * problem.sigma**2 / workers


def transient_steps(problem: Quadratic, workers: int) -> int:
    """The steps after which the stepsize rule no longer asks for more than 1/L: 2 L D N / sigma^2, rounded up."""
    return math.ceil(2 * problem.smoothness * problem.distance * workers / problem.sigma**2)


def noise(problem: Quadratic, worker: int, steps: int) -> Tensor:
    """What one worker's gradients are wrong by, in all steps; its seed is its number.

    Shapes: -> (steps, size).
    """
    generator = torch.Generator().manual_seed(worker)
    drawn = torch.randn(steps, problem.size, generator=generator, dtype=torch.float64)
    return drawn * (problem.sigma / math.sqrt(problem.size))


def psgd_alone(problem: Quadratic, workers: int, steps: int, rate: float | None = None) -> float:
    """All workers in one process, at the theorem's stepsize or another; returns the mean squared gradient."""
    averages = torch.stack([noise(problem, worker, steps) for worker in range(workers)]).mean(dim=0)
    return _descend(problem, rate or stepsize(problem, workers, steps), averages, lambda gradient: gradient)


def psgd_rank(problem: Quadratic, steps: int) -> float:
    """This rank is one worker: its gradient meets the others' in an all-reduce at every step.

    Cost: one all-reduce of `size` float64 numbers per step.
    """
    mine = noise(problem, dist.get_rank(), steps)
    return _descend(problem, stepsize(problem, dist.get_world_size(), steps), mine, _average)


def _average(gradient: Tensor) -> Tensor:
    return comm.all_reduce(gradient, op=ReduceOp.AVG, algorithm="recursive_doubling")


def _descend(problem: Quadratic, gamma: float, errors: Tensor, agree: Callable[[Tensor], Tensor]) -> float:
    curvatures = problem.curvatures
    x, total = torch.ones_like(curvatures), 0.0
    for error in errors:
        gradient = curvatures * x
        total += (gradient @ gradient).item()
        x = x - gamma * agree(gradient + error)
    return total / len(errors)
