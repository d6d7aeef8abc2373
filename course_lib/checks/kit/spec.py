"""What an exercise is: the cases it is run on, what must come out, and the points of each level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.signature import Puzzle
from course_lib.costs.comm.traffic import CommTime

LARGEST = {"float32": 999, "int64": 999, "bfloat16": 15}  # so that sums are exact in every order


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run on real ranks. `length` counts the rows of the *whole* tensor, `row` is the shape of one row."""

    world_size: int
    length: int
    row: tuple[int, ...] = ()
    dtype: str = "float32"
    root: int = 0
    node_size: int = 1

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
        largest = LARGEST[self.dtype]
        values = torch.randint(1, largest, (self.length, *self.row), generator=generator)
        signs = torch.randint(0, 2, values.shape, generator=generator) * 2 - 1
        return (values * signs).to(getattr(torch, self.dtype))


@dataclass(frozen=True, kw_only=True)
class Level:
    """One graded step of an exercise: `points` for all of `cases`; `traffic` if the bytes count as well.

    Its graded cell asks `again`, hidden, with other inputs: who only knows the first ones does not get its points.
    """

    points: int
    cases: tuple[Any, ...]  # Case, or what the exercise's own probe takes
    traffic: bool = False
    again: bool = False
    praise: str


@dataclass(frozen=True, kw_only=True)
class WriteExercise:
    """An exercise whose answer is a function that runs on every rank."""

    key: str
    title: str
    arguments: Callable[[Case, int, int], tuple[Any, ...]]  # (case, seed, rank), called on the rank
    puzzle: Callable[[Case, int], Puzzle]  # (case, seed)
    shape: Callable[[Case, int], tuple[int, ...]]  # of a rank's result
    cost: Callable[[Case], CommTime]
    levels: Mapping[str, Level]
    hints: tuple[str, ...]
    allowed: frozenset[str] = frozenset()  # collectives of the library that may be called
    forbidden_algorithm: str = ""  # of the library: the exercise itself
    extra: Callable[[Case, list[list[int]]], str | None] = field(default=lambda case, matrix: None)


def flat_chunks(x: Tensor, parts: int) -> list[Tensor]:
    """`torch.tensor_split` along dim 0, each chunk flattened."""
    return [chunk.reshape(-1) for chunk in x.tensor_split(parts)]
