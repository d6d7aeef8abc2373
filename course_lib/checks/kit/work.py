"""What an answer computes on its rank, wherever it does so: products of matrices, and rows that are normalised."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"}
_ROOTS = {"sqrt", "rsqrt", "linalg_vector_norm", "_fused_rms_norm"}
_DECIMALS = 6  # to which a root that is taken again agrees


class Watch(TorchDispatchMode):
    """Sees every call that reaches PyTorch's kernels. A mode that hides from its compiler imports that first."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Work(Watch):
    """Counts multiplications in products of matrices, autograd's too, and rows that are normalised, together or alone.

    PyTorch's own counter hides from the compiler.
    """

    def __init__(self) -> None:
        super().__init__()
        self.multiplications = 0
        self._roots: set[float] = set()

    @property
    def normalised(self) -> int:
        """A row has one root, whether it is multiplied by it or divided, and however often."""
        return len(self._roots)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            self.multiplications += result.numel() * args[-2].shape[-1]
        if name in _ROOTS or (name == "pow" and args[1] in (0.5, -0.5)):
            roots = result if isinstance(result, Tensor) else result[-1]
            self._roots |= set(roots.detach().log().abs().round(decimals=_DECIMALS).flatten().tolist())
        return result


@cache
def import_sympy() -> None:
    """Runs on a rank, outside the learner's time: backward from a gradient that is given imports it.

    It stays, so garbage collection passes over it from then on.
    """
    x = torch.zeros(1, requires_grad=True)
    torch.autograd.grad(x, x, torch.zeros(1))
    gc.freeze()
