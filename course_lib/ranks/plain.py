"""Tensors as plain bytes, for objects that ranks exchange or give back: torch pickles each tensor as a file of its own,
with more bytes around its numbers than these often are, and at many times the cost.

Between notebook and ranks tensors change their place: the notebook computes on the CPU, a rank on its device.
"""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from pickle import DEFAULT_PROTOCOL
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor, nn


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
    """Pickled by value where needed, as cloudpickle does, ordinary tensors as their bytes, all of them for the CPU."""
    file = io.BytesIO()
    Pickler(file).dump(content)
    return file.getvalue()


def unpickled(content: bytes, device: torch.device | str) -> Any:
    """The objects again, with all their tensors on `device`."""
    return Unpickler(io.BytesIO(content), torch.device(device)).load()


def reduced(x: Tensor) -> Any:
    """How to make it again; by torch's own way if there is more to it than numbers in a row."""
    if x.is_cuda:
        x = _brought_home(x)
    row = x.device.type == "cpu" and x.layout is torch.strided and x.is_contiguous()
    if not row or x.requires_grad or x.is_neg() or x.is_conj() or x.is_quantized or vars(x):
        return x.__reduce_ex__(DEFAULT_PROTOCOL)
    return Plain.tensor, (plain(x),)


def reduced_parameter(x: nn.Parameter) -> Any:
    """A parameter by torch's own way, from main memory."""
    home = nn.Parameter(_brought_home(x), x.requires_grad) if x.is_cuda else x
    return home.__reduce_ex__(DEFAULT_PROTOCOL)


def _brought_home(x: Tensor) -> Tensor:
    return x.detach().cpu().requires_grad_(x.requires_grad)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, but for tensors."""

    dispatch_table = ChainMap({Tensor: reduced, nn.Parameter: reduced_parameter}, cloudpickle.Pickler.dispatch_table)


class Unpickler(pickle.Unpickler):
    """torch pickles a tensor's memory as a file, which it loads to where it came from: here it loads it elsewhere."""

    def __init__(self, file: io.BytesIO, device: torch.device) -> None:
        super().__init__(file)
        self._device = device

    def find_class(self, module: str, name: str) -> Any:
        """As usual, but for torch's own loader."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return self._load
        return super().find_class(module, name)

    def _load(self, file: bytes) -> Any:
        return torch.load(io.BytesIO(file), map_location=self._device, weights_only=False)
