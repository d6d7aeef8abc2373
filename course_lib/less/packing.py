"""Numbers as bytes and back, so that what a message weighs is what the wire carries."""

from __future__ import annotations

import torch
from torch import Tensor


def as_bytes(numbers: Tensor) -> Tensor:
    """The bytes of numbers, as they lie in memory. Shapes: (..., n) -> uint8 (..., n * itemsize)."""
    return numbers.contiguous().view(torch.uint8)


def as_numbers(message: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers whose bytes these are. Shapes: uint8 (..., n * itemsize) -> (..., n)."""
    # a copy, because numbers of 8 bytes cannot begin at any byte of the buffer that a message is cut from
    return message.clone(memory_format=torch.contiguous_format).view(dtype)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes below 2^bits, as many to a byte as fit, the first in its lowest bits.

    Shapes: uint8 (..., n) -> uint8 (..., ceil(n bits / 8)); `bits` divides 8.
    """
    in_a_byte = 8 // bits
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % in_a_byte))
    places = padded.unflatten(-1, (-1, in_a_byte)) << _shifts(bits, codes.device)
    return places.sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """The first n codes. Shapes: uint8 (..., ceil(n bits / 8)) -> uint8 (..., n)."""
    codes = packed.unsqueeze(-1) >> _shifts(bits, packed.device) & (1 << bits) - 1
    return codes.flatten(-2)[..., :n]


def packed_bytes(n: int, bits: int) -> int:
    """Bytes of n packed codes."""
    return -(-n * bits // 8)


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)
