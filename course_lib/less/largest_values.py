"""Top-k: the numbers of largest magnitude and where they stand; all others are taken for zero.

Nothing that keeps k numbers comes nearer to x. But which ones these are differs from rank to rank, so messages cannot
be summed on their way: an all-reduce becomes an all-gather.
Source: Stich, Cordonnier and Jaggi 2018, Sparsified SGD with Memory; Aji and Heafield 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from course_lib.less.fraction import check_fraction, kept
from course_lib.less.packing import as_bytes, as_numbers

# int32: a float32 would be as wide, but holds whole numbers exactly only up to 2^24, and models have more places
_PLACE_BYTES = 4


@dataclass(frozen=True)
class TopK:
    """The message is k values in x's dtype, then their k places in int32."""

    fraction: float
    adds_up: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"top-{100 * self.fraction:g} %"

    def encode(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Shapes: (..., size) -> uint8 (..., message_bytes). Nothing is drawn."""
        places = x.abs().topk(kept(self.fraction, x.shape[-1]), sorted=False).indices
        return torch.cat([as_bytes(x.gather(-1, places)), as_bytes(places.int())], -1)

    def decode(self, message: Tensor, size: int, dtype: torch.dtype, draws: torch.Generator) -> Tensor:
        """Shapes: uint8 (..., message_bytes) -> (..., size)."""
        values_end = message.shape[-1] - _PLACE_BYTES * kept(self.fraction, size)
        values = as_numbers(message[..., :values_end], dtype)
        places = as_numbers(message[..., values_end:], torch.int32).long()
        return values.new_zeros(*values.shape[:-1], size).scatter_(-1, places, values)

    def message_bytes(self, size: int, itemsize: int) -> int:
        """A value and a place for each number that is kept."""
        return kept(self.fraction, size) * (itemsize + _PLACE_BYTES)

    def delta(self, size: int) -> float:
        """k/d: worst is a vector whose numbers are all alike."""
        return kept(self.fraction, size) / size

    def omega(self, size: int) -> None:
        """None: biased."""


def top_k(fraction: float) -> TopK:
    """Send this fraction of the numbers, those of largest magnitude.

    Raises: ValueError for a fraction outside (0, 1].
    """
    check_fraction("top_k", fraction)
    return TopK(fraction)
