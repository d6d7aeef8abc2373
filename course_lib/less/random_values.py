"""Rand-k: numbers at places that a generator draws, so that the places themselves need not be sent.

All ranks draw with one seed and choose the same places. Then the mean of the compressed is the compressed mean, and the
messages are summed on their way as a whole gradient would be.
Source: Stich, Cordonnier and Jaggi 2018, section 2; Beznosikov et al. 2020, examples 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from course_lib.less.fraction import check_fraction, kept
from course_lib.less.packing import as_bytes, as_numbers


@dataclass(frozen=True)
class RandK:
    """The message is k values in x's dtype; all rows of one call have them at the same places.

    `scaled` multiplies them by d/k, which makes up for what is not sent: unbiased, with a large variance.
    """

    fraction: float
    scaled: bool
    adds_up: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"rand-{100 * self.fraction:g} %{', scaled' * self.scaled}"

    def encode(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Shapes: (..., size) -> uint8 (..., message_bytes)."""
        size = x.shape[-1]
        values = x[..., self._places(size, draws)]
        return as_bytes(values * (size / values.shape[-1]) if self.scaled else values)

    def decode(self, message: Tensor, size: int, dtype: torch.dtype, draws: torch.Generator) -> Tensor:
        """Shapes: uint8 (..., message_bytes) -> (..., size)."""
        values = as_numbers(message, dtype)
        whole = values.new_zeros(*values.shape[:-1], size)
        whole[..., self._places(size, draws)] = values
        return whole

    def message_bytes(self, size: int, itemsize: int) -> int:
        """The values alone."""
        return kept(self.fraction, size) * itemsize

    def delta(self, size: int) -> float | None:
        """k/d, in expectation over the places, and for every x."""
        return None if self.scaled else kept(self.fraction, size) / size

    def omega(self, size: int) -> float | None:
        """d/k - 1, for every x."""
        return size / kept(self.fraction, size) - 1 if self.scaled else None

    def _places(self, size: int, draws: torch.Generator) -> Tensor:
        return torch.randperm(size, generator=draws)[: kept(self.fraction, size)]


def rand_k(fraction: float, scaled: bool = True) -> RandK:
    """Send this fraction of the numbers, at places drawn anew in each call.

    Raises: ValueError for a fraction outside (0, 1].
    """
    check_fraction("rand_k", fraction)
    return RandK(fraction, scaled)
