"""Activations kept elsewhere, or in fewer bits: what autograd wants to keep passes a pair of hooks on its way there.

with in_bf16(model.parameters()): loss = model(x) ...    # or in checkpoint_layers(…, stored=in_files(folder))

What is kept as it is, is kept without its history: a result that its own node keeps would hold that node, and the two
each other, long after the loss has gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

_LEAST_BYTES = 65_536  # of what is worth a file


class _OnDisk:
    """A tensor's numbers in a file, which goes when nobody wants it any more."""

    def __init__(self, tensor: Tensor, folder: Path) -> None:
        self.path = folder / uuid4().hex
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tofile(self.path)

    def read(self) -> Tensor:
        """The same bits."""
        numbers = torch.empty(self.shape, dtype=self.dtype)
        numbers.untyped_storage().copy_(torch.UntypedStorage.from_file(str(self.path), False, numbers.nbytes))
        return numbers.to(self.device)

    def __del__(self) -> None:
        self.path.unlink(missing_ok=True)


def in_files(folder: Path, weights: Iterable[Tensor] = ()) -> saved_tensors_hooks:
    """While it is entered, autograd keeps large tensors but `weights` in files: as many bytes less in memory.

    Cost: each byte is written once and read once; the numbers are the same bits.
    """
    lasting = _addresses(weights)

    def keep(tensor: Tensor) -> Tensor | _OnDisk:
        is_small = tensor.nbytes < _LEAST_BYTES
        return tensor.detach() if is_small or _address(tensor) in lasting else _OnDisk(tensor, folder)

    return saved_tensors_hooks(keep, lambda kept: kept.read() if isinstance(kept, _OnDisk) else kept)


class _Half(NamedTuple):
    """A tensor in bf16, and what it was before."""

    numbers: Tensor
    dtype: torch.dtype


def in_bf16(weights: Iterable[Tensor] = ()) -> saved_tensors_hooks:
    """While it is entered, autograd keeps fp32 tensors but `weights` in bf16: half of their bytes.

    Forward is exact. Backward multiplies by numbers with 8 significant bits, so that gradients are off by a hundredth.
    """
    lasting = _addresses(weights)

    def keep(tensor: Tensor) -> Tensor | _Half:
        if tensor.dtype != torch.float32 or _address(tensor) in lasting:
            return tensor.detach()
        return _Half(tensor.to(torch.bfloat16), tensor.dtype)

    return saved_tensors_hooks(keep, lambda kept: kept.numbers.to(kept.dtype) if isinstance(kept, _Half) else kept)


def _addresses(weights: Iterable[Tensor]) -> set[int]:
    """They last anyway, so that a copy would only cost memory."""
    return {_address(weight) for weight in weights}


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
