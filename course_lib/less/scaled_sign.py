"""Scaled sign: of each number only whether it is below zero, and for all of them their mean magnitude.

Source: Karimireddy et al. 2019, Error Feedback Fixes SignSGD; Seide et al. 2014 sent one bit first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from course_lib.less.packing import as_bytes, as_numbers, pack, packed_bytes, unpack


@dataclass(frozen=True)
class ScaledSign:
    """The message is the mean |x| in x's dtype, then one bit a number; a zero counts as positive."""

    adds_up: ClassVar[bool] = False

    def __str__(self) -> str:
        return "sign"

    def encode(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Shapes: (..., size) -> uint8 (..., message_bytes). Nothing is drawn."""
        scale = x.abs().mean(-1, keepdim=True)
        return torch.cat([as_bytes(scale), pack((x < 0).byte(), bits=1)], -1)

    def decode(self, message: Tensor, size: int, dtype: torch.dtype, draws: torch.Generator) -> Tensor:
        """Shapes: uint8 (..., message_bytes) -> (..., size)."""
        scale = as_numbers(message[..., : dtype.itemsize], dtype)
        below = unpack(message[..., dtype.itemsize :], bits=1, n=size)
        return scale * (1 - 2 * below.to(dtype))

    def message_bytes(self, size: int, itemsize: int) -> int:
        """The scale, and eight numbers to a byte."""
        return itemsize + packed_bytes(size, bits=1)

    def delta(self, size: int) -> float:
        """1/d. Of one x it is |x|_1^2 / (d |x|_2^2): least where only one number is not zero, 1 where all are equal."""
        return 1 / size

    def omega(self, size: int) -> None:
        """None: biased."""


def sign() -> ScaledSign:
    """Send one bit a number and one scale."""
    return ScaledSign()
