"""Numbers as places in a table: a block of them has one scale, and each becomes the level of the table nearest to it.

The scale is the block's largest size, so that every number divided by it lies between -1 and 1, where the levels are.
A number far above the rest makes its own block coarse, and no other.
Source: Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization, section 2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def in_blocks(x: Tensor, block: int) -> Tensor:
    """The numbers in rows of `block`, the last one filled up with zeros. Shapes: (...) -> (blocks, block)."""
    flat = x.flatten()
    return F.pad(flat, (0, -len(flat) % block)).view(-1, block)


def encode(x: Tensor, levels: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Each number's place in the table, and each block's scale.

    Shapes: x (...) of n numbers, levels (L,) in rising order with L <= 256 -> uint8 (n,), float32 (blocks,).
    """
    rows = in_blocks(x.float(), block)
    scales = rows.abs().amax(1)
    # A block of zeros has the scale 0: divided by anything else its numbers stay 0.
    shares = rows / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    between = (levels[1:] + levels[:-1]) / 2
    places = torch.bucketize(shares, between, out_int32=True)
    return places.flatten()[: x.numel()].to(torch.uint8), scales


def decode(codes: Tensor, scales: Tensor, levels: Tensor, block: int) -> Tensor:
    """What the codes say. Shapes: uint8 (n,), float32 (blocks,), (L,) -> float32 (n,)."""
    rows = in_blocks(levels[codes.int()], block) * scales[:, None]
    return rows.flatten()[: len(codes)]
