"""Tensors as plain bytes, for ranks that exchange objects: torch pickles each tensor as a file of its own, with more
bytes around its numbers than these often are, and at many times the cost."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Plain(NamedTuple):
    """One tensor without its gradient and without the memory that it may be a part of."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str  # the type alone: a rank has a GPU of its own
    numbers: bytes

    def tensor(self) -> Tensor:
        """The same numbers in memory of their own."""
        if not self.numbers:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        flat = torch.frombuffer(bytearray(self.numbers), dtype=self.dtype)
        return flat.view(self.shape).to(self.device)


def plain(x: Tensor) -> Plain:
    """A tensor's bytes, and what makes a tensor of them."""
    flat = x.detach().cpu().contiguous().view(-1)
    return Plain(x.dtype, tuple(x.shape), x.device.type, flat.view(torch.uint8).numpy().tobytes())
