"""What every compressor is: a pair of functions, the bytes between them, and how far off the theory says they are.

There are two kinds, and every proof is for one of them. An **unbiased** compressor is right on average over its draws:
E C(x) = x and E |C(x) - x|^2 <= omega |x|^2. A **contractive** one is wrong each time, but never by as much as sending
nothing: E |C(x) - x|^2 <= (1 - delta) |x|^2 with delta in (0, 1].
Source: Beznosikov et al. 2020, On Biased Compression for Distributed Learning, sections 2.1 and 2.2.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Compressor(Protocol):
    """Turns vectors into messages and back; one class serves the run, its theory and its bytes.

    It works on the last dim, with any dims before it: a rank has one gradient, the laboratory one for each worker.
    Random compressors take their randomness from `draws`. Where messages add up, the ranks have to draw alike, and
    whoever decodes draws what the sender drew: give all of them generators of one seed. Elsewhere each rank draws for
    itself, so that the ranks' errors average out. The generator is a CPU's, which draws alike on all machines.
    """

    @property
    def adds_up(self) -> bool:
        """Whether the ranks' messages, read as numbers of x's dtype, may be summed before one of them is decoded."""

    def encode(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """What is sent. Shapes: floats (..., size) -> uint8 (..., message_bytes)."""

    def decode(self, message: Tensor, size: int, dtype: torch.dtype, draws: torch.Generator) -> Tensor:
        """What the receiver takes for x. Shapes: uint8 (..., message_bytes) -> `dtype` (..., size)."""

    def message_bytes(self, size: int, itemsize: int) -> int:
        """Bytes of the message of `size` numbers of `itemsize` bytes each."""

    def delta(self, size: int) -> float | None:
        """The contraction that holds for every x of this size; None for an unbiased compressor."""

    def omega(self, size: int) -> float | None:
        """The relative variance that no x of this size exceeds; None for a contractive compressor."""


def compressed(compressor: Compressor, x: Tensor, draws: torch.Generator) -> Tensor:
    """C(x): x as its receiver gets to know it, who draws what the sender drew. Shapes: as x."""
    twin = torch.Generator()
    twin.set_state(draws.get_state())
    return compressor.decode(compressor.encode(x, draws), x.shape[-1], x.dtype, twin)
