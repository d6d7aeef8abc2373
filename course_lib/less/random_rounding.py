"""QSGD: each number becomes one of a few levels between 0 and the norm, rounded up or down by chance, right on average.

A number at 2.3 levels becomes 2 with probability 0.7 and 3 with 0.3. The levels reach up to the norm, which grows with
the root of how many numbers share it; so a long vector is cut into buckets, each with its own norm.
Source: Alistarh et al. 2017, QSGD, section 3.1 (Lemma 3.1 for omega); buckets: section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.less.packing import as_bytes, as_numbers, pack, packed_bytes, unpack

_WIDTHS = (2, 4, 8)  # bits, of which whole numbers fit into a byte


@dataclass(frozen=True)
class QSGD:
    """The message is each bucket's norm in x's dtype, then the signed levels in 2, 4 or 8 bits each."""

    levels: int
    bucket: int
    adds_up: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"QSGD {self.levels} levels, buckets of {self.bucket}"

    @property
    def bits(self) -> int:
        """The fewest that hold a signed level, of which there are 2 levels + 1."""
        return next(bits for bits in _WIDTHS if 2 * self.levels + 1 <= 1 << bits)

    def encode(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Shapes: (..., size) -> uint8 (..., message_bytes)."""
        buckets = self._in_buckets(x)
        norms, height = self._heights(buckets)
        chance = torch.rand(height.shape, generator=draws, dtype=x.dtype).to(x.device)
        level = height.floor() + (chance < height - height.floor())
        codes = (level * buckets.sign() + self.levels).to(torch.uint8)
        return torch.cat([as_bytes(norms.squeeze(-1)), pack(codes.flatten(-2)[..., : x.shape[-1]], self.bits)], -1)

    def decode(self, message: Tensor, size: int, dtype: torch.dtype, draws: torch.Generator) -> Tensor:
        """Shapes: uint8 (..., message_bytes) -> (..., size). Nothing is drawn."""
        norms_end = self._buckets(size) * dtype.itemsize
        norms = as_numbers(message[..., :norms_end], dtype)
        level = unpack(message[..., norms_end:], self.bits, size).to(dtype) - self.levels
        return (self._in_buckets(level) * (norms / self.levels).unsqueeze(-1)).flatten(-2)[..., :size]

    def outcomes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The two values that each number may become, the one nearer to 0 first, and the chance of the second.

        Shapes: (..., size), each.
        """
        buckets = self._in_buckets(x)
        norms, height = self._heights(buckets)
        step = buckets.sign() * norms / self.levels
        found = (step * height.floor(), step * (height.floor() + 1), height - height.floor())
        low, high, chance = (part.flatten(-2)[..., : x.shape[-1]] for part in found)
        return low, high, chance

    def message_bytes(self, size: int, itemsize: int) -> int:
        """A norm for each bucket, and a few bits for each number."""
        return self._buckets(size) * itemsize + packed_bytes(size, self.bits)

    def delta(self, size: int) -> None:
        """None: unbiased."""

    def omega(self, size: int) -> float:
        """min(b/s^2, sqrt(b)/s) for b numbers in a bucket and s levels."""
        b, s = min(self.bucket, size), self.levels
        return min(b / s**2, b**0.5 / s)

    def _heights(self, buckets: Tensor) -> tuple[Tensor, Tensor]:
        """Norms (..., buckets, 1), and how many levels high each number stands (..., buckets, bucket)."""
        norms = torch.linalg.vector_norm(buckets, dim=-1, keepdim=True)
        share = (buckets.abs() / norms).nan_to_num(0.0)  # a bucket of zeros has no norm to divide by
        return norms, (share * self.levels).clamp(max=self.levels)  # rounding can lift a share above 1

    def _buckets(self, size: int) -> int:
        return -(-size // self.bucket)

    def _in_buckets(self, x: Tensor) -> Tensor:
        """Shapes: (..., size) -> (..., buckets, bucket), with zeros at the end of the last."""
        length = min(self.bucket, x.shape[-1])
        return torch.nn.functional.pad(x, (0, -x.shape[-1] % length)).unflatten(-1, (-1, length))


def qsgd(levels: int, bucket: int) -> QSGD:
    """Round each number to one of `levels` levels above zero, or as many below, in buckets that share a norm.

    Raises: ValueError for fewer than one level, more than a byte holds, or an empty bucket.
    """
    most = ((1 << _WIDTHS[-1]) - 1) // 2
    if not 1 <= levels <= most:
        rule = f"a signed level is one of 2 levels + 1 values and has at most {_WIDTHS[-1]} bits"
        raise ValueError(four_parts("qsgd", f"levels={levels}", rule, f"choose 1 <= levels <= {most}"))
    if bucket < 1:
        way_out = "choose bucket >= 1, for example 512"
        raise ValueError(four_parts("qsgd", f"bucket={bucket}", "numbers of one bucket share a norm", way_out))
    return QSGD(levels, bucket)
