"""Tensors as plain bytes, for objects that ranks exchange or give back: torch pickles each tensor as a file of its own,
with more bytes around its numbers than these often are, and at many times the cost."""

from __future__ import annotations

import io
from collections import ChainMap
from pickle import DEFAULT_PROTOCOL
from typing import Any, NamedTuple

import cloudpickle
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
    # of a side of 1 a contiguous tensor may have any stride, which no view of bytes takes
    flat = x.detach().cpu().contiguous().as_strided((x.numel(),), (1,))
    return Plain(x.dtype, tuple(x.shape), x.device.type, flat.view(torch.uint8).numpy().tobytes())


def pickled(content: Any) -> bytes:
    """Pickled by value where needed, as cloudpickle does, ordinary tensors as their bytes."""
    file = io.BytesIO()
    _Pickler(file).dump(content)
    return file.getvalue()


def _reduced(x: Tensor) -> Any:
    """How to make it again; by torch's own way if there is more to it than numbers in a row."""
    row = x.device.type == "cpu" and x.layout is torch.strided and x.is_contiguous()
    if not row or x.requires_grad or x.is_neg() or x.is_conj() or x.is_quantized or vars(x):
        return x.__reduce_ex__(DEFAULT_PROTOCOL)
    return Plain.tensor, (plain(x),)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = ChainMap({Tensor: _reduced}, cloudpickle.Pickler.dispatch_table)
