"""Linear maps as models have them: PyTorch's, and that of transformers' GPT-2, whose matrix lies transposed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class TransposedMap(Protocol):
    """y = x W + b, as `transformers.pytorch_utils.Conv1D` computes it. Shapes: W (in, out)."""

    weight: nn.Parameter
    bias: nn.Parameter
    nx: int  # in
    nf: int  # out

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: (..., in) -> (..., out)."""


def is_linear_map(module: nn.Module) -> bool:
    """Whether it multiplies by a matrix, and perhaps adds a bias."""
    return isinstance(module, nn.Linear | TransposedMap)
