"""What an exercise is: the cases it is run on, what must come out, and the points of each level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FP64, FP32, BF16 = 8, 4, 2  # bytes of a number
_LARGEST = {"float32": 999, "int64": 999, "bfloat16": 15}  # so that sums are exact in every order


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run on real ranks. `length` counts the rows of the *whole* tensor, `row` is the shape of one row."""

    world_size: int
    length: int
    row: tuple[int, ...] = ()
    dtype: str = "float32"
    root: int = 0
    node_size: int = 1
    traffic: bool = False  # whether messages, steps and bytes count as well

    def __str__(self) -> str:
        shape = (self.length, *self.row)
        size = f"{self.length} numbers" if not self.row else f"shape {shape}"
        extras = [f"root {self.root}"] * (self.root > 0) + [f"{self.node_size} per node"] * (self.node_size > 1)
        extras += [self.dtype] * (self.dtype != "float32")
        ranks = f"{self.world_size} rank{'s' if self.world_size > 1 else ''}"
        return ", ".join([ranks, size, *extras])

    def whole(self, seed: int, rank: int) -> Tensor:
        """The whole tensor that a rank starts from: integers, other ones on each rank and for each seed."""
        mixed = ((seed * 1009 + rank) * 1009 + self.world_size) * 1009 + self.length
        generator = torch.Generator().manual_seed(mixed)
        largest = _LARGEST[self.dtype]
        values = torch.randint(1, largest, (self.length, *self.row), generator=generator)
        signs = torch.randint(0, 2, values.shape, generator=generator) * 2 - 1
        return (values * signs).to(getattr(torch, self.dtype))


@dataclass(frozen=True, kw_only=True)
class Level:
    """One graded step of an exercise: `points` for all of `cases`, and for those that the seed draws.

    Its graded cell asks `again`, hidden, with other inputs: who only knows the first ones does not get its points.
    What fails `alone` says nothing about the levels after it, so they run.
    """

    points: int
    cases: tuple[Any, ...]  # Case, or what the exercise's own probe takes
    again: bool = False
    alone: bool = False
    drawn: Callable[[int], tuple[Any, ...]] = lambda seed: ()
    praise: str
