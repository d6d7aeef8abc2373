"""PowerSGD: each matrix of the gradient as two thin factors, which all ranks sum; its vectors are sent as they are.

Source: Vogels, Karimireddy and Jaggi 2019, PowerSGD, algorithms 1 and 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.less.low_rank import first_directions, from_factors, left_factor, orthonormal, right_factor
from course_lib.less.methods import Memory, Shapes, summed_bytes


@dataclass(frozen=True)
class PowerSGD:
    """The memories are each worker's "residual", and of matrix i the "directions i" that all have alike."""

    rank: int
    gradients_a_step: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"PowerSGD rank {self.rank}"

    def agree(self, gradients: Tensor, memory: Memory) -> Tensor:
        """Shapes: (..., workers, size) -> (..., size)."""
        due = gradients + memory.of("residual", gradients)
        tensors = due.split([math.prod(shape) for shape in memory.shapes], -1)
        parts = [self._part(place, x, memory) for place, x in enumerate(tensors)]
        mean = torch.cat(parts, -1)
        memory.kept["residual"] = due - mean.unsqueeze(-2)
        return mean

    def sent_bytes(self, shapes: Shapes, itemsize: int, workers: int) -> float:
        """Two all-reduces: of all left factors and all vectors, then of all right factors."""
        return summed_bytes(itemsize * sum(self._numbers(shape) for shape in shapes), workers)

    def _part(self, place: int, x: Tensor, memory: Memory) -> Tensor:
        """What all take for the mean of one tensor. Shapes: (..., workers, n) -> (..., n)."""
        shape = memory.shapes[place]
        if len(shape) != 2:
            return x.mean(-2)
        matrices, name = x.unflatten(-1, shape), f"directions {place}"
        if name not in memory.kept:
            memory.kept[name] = first_directions((shape[0], shape[1]), self.rank, memory.draws, x.dtype)
        directions = orthonormal(memory.kept[name])
        if directions.dim() > 2:  # each seed has had gradients of its own
            directions = directions.unsqueeze(-3)
        left = orthonormal(left_factor(matrices, directions).mean(-3))
        memory.kept[name] = right_factor(matrices, left.unsqueeze(-3)).mean(-3)
        return from_factors(left, memory.kept[name]).flatten(-2)

    def _numbers(self, shape: tuple[int, ...]) -> int:
        return min(self.rank, *shape) * sum(shape) if len(shape) == 2 else math.prod(shape)


def power_sgd(rank: int) -> PowerSGD:
    """Two factors of so many columns for each matrix; the memory keeps what they do not hold.

    Raises: ValueError for a rank below 1.
    """
    if rank < 1:
        raise ValueError(four_parts("power_sgd", f"rank={rank}", "a factor has columns", "choose rank >= 1"))
    return PowerSGD(rank)
