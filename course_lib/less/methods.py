"""What a lossy exchange of gradients is, and the two that remember nothing: all of it, and a compressor alone.

A method is a description without state: it says what is sent and what everybody takes for the mean gradient. What it
remembers from step to step lies in a `Memory`, which can be looked at, saved and restored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from course_lib.less.compressor import Compressor, compressed

Shapes = Sequence[tuple[int, ...]]


@dataclass(kw_only=True)
class Memory:
    """Of one method in one run: the tensors that it keeps, by their names there, and the generator that it draws with.

    `shapes` are those of the model's tensors, which lie one after the other in a gradient.
    """

    shapes: Shapes
    kept: dict[str, Tensor] = field(default_factory=dict)
    draws: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(3))

    def of(self, name: str, like: Tensor) -> Tensor:
        """What is kept under this name; zeros before anything is."""
        return self.kept.get(name, torch.zeros_like(like))


class Method(Protocol):
    """One exchange of gradients among workers that all hold the same model."""

    @property
    def gradients_a_step(self) -> int:
        """Of each worker; their mean goes into one exchange."""

    def agree(self, gradients: Tensor, memory: Memory) -> Tensor:
        """What all workers take for their mean gradient. Shapes: (..., workers, size) -> (..., size)."""

    def sent_bytes(self, shapes: Shapes, itemsize: int, workers: int) -> float:
        """What one worker sends in one exchange, where all send alike."""


def size_of(shapes: Shapes) -> int:
    """Numbers of a model."""
    return sum(math.prod(shape) for shape in shapes)


def summed_bytes(nbytes: float, workers: int) -> float:
    """What one worker sends of an all-reduce of `nbytes`, by a ring or by halving and doubling."""
    return 2 * (workers - 1) / workers * nbytes


def message_bytes(compressor: Compressor, size: int, itemsize: int, workers: int) -> float:
    """What one worker sends so that all have all messages, or their sum where they add up."""
    message = compressor.message_bytes(size, itemsize)
    return summed_bytes(message, workers) if compressor.adds_up else (workers - 1) * message


@dataclass(frozen=True)
class Whole:
    """Everything is sent, and an all-reduce makes the mean gradient."""

    gradients_a_step: ClassVar[int] = 1

    def __str__(self) -> str:
        return "PSGD"

    def agree(self, gradients: Tensor, memory: Memory) -> Tensor:
        """Shapes: (..., workers, size) -> (..., size)."""
        return gradients.mean(-2)

    def sent_bytes(self, shapes: Shapes, itemsize: int, workers: int) -> float:
        """An all-reduce of the gradient."""
        return summed_bytes(size_of(shapes) * itemsize, workers)


@dataclass(frozen=True)
class Alone:
    """Each worker sends its gradient compressed; what the message lacks is forgotten."""

    compressor: Compressor
    gradients_a_step: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"{self.compressor} alone"

    def agree(self, gradients: Tensor, memory: Memory) -> Tensor:
        """Shapes: (..., workers, size) -> (..., size)."""
        return compressed(self.compressor, gradients, memory.draws).mean(-2)

    def sent_bytes(self, shapes: Shapes, itemsize: int, workers: int) -> float:
        """One message of each worker."""
        return message_bytes(self.compressor, size_of(shapes), itemsize, workers)


def psgd() -> Whole:
    """Parallel SGD, which loses nothing."""
    return Whole()


def alone(compressor: Compressor) -> Alone:
    """A compressor and nothing else: right on average if it is unbiased, and else wrong in a way that may not end."""
    return Alone(compressor)
