"""Selective checkpointing: of what a layer computes, the results that took longest are kept, and not computed again.

PyTorch hands every operator of a layer to a dispatch mode, below autograd. The first time the mode notes the results of
some of them. The second time it gives these back without computing, and autograd, above it, sees no difference.
Source: Korthikanti et al. 2022, Reducing activation recomputation in large transformer models, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

Keep = Literal["nothing", "matmuls", "attention"]
_aten = torch.ops.aten
OPERATORS: Mapping[Keep, Set[Any]] = {
    "nothing": frozenset(),
    # Products with weights, by experts too; of the others, scores times values, a layer must not keep the results.
    "matmuls": frozenset({_aten.mm.default, _aten.addmm.default, _aten._grouped_mm.default}),
    "attention": frozenset(  # as PyTorch's own kernels compute it: without scores, on a CPU or a GPU
        {
            _aten._scaled_dot_product_flash_attention_for_cpu.default,
            _aten._scaled_dot_product_flash_attention.default,
            _aten._scaled_dot_product_efficient_attention.default,
            _aten._scaled_dot_product_cudnn_attention.default,
        }
    ),
}


class KeptResults(TorchDispatchMode):
    """The results of some `operators`: noted while it is entered the first time, given back the second time."""

    def __init__(self, operators: Set[Any]) -> None:
        super().__init__()
        self.operators = operators
        self.results: list[Any] = []
        self.is_again = False

    def keep(self) -> None:
        """The first time is over."""
        self.is_again = True

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in self.operators:
            return func(*args, **(kwargs or {}))
        if self.is_again:
            return self.results.pop(0)
        result = func(*args, **(kwargs or {}))
        # A copy, for ranks that share a matrix add up their results in place.
        self.results.append(tree_map_only(Tensor, torch.clone, result))
        return result
