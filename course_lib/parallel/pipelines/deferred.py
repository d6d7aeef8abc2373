"""Backward in two parts: the gradients of inputs now, those of linear layers' weights whenever it suits.

No other rank waits for a weight's gradient. What is not a linear layer (embeddings, norms) gets its gradients with
the inputs'.
Source: Qi et al. 2023, Zero bubble pipeline parallelism, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Deferred(TorchFunctionMode):
    """While a forward pass runs inside, its linear layers will leave their weights' gradients for `finish`.

    with Deferred() as later: y = model(x)
    y.backward(gradient)  # gradients of inputs
    later.finish()        # gradients of weights

    Cost: between the two parts each layer's input and the gradient of its output stay, `retained_bytes`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owed: list[tuple[Tensor, Tensor | None, Tensor, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear:
            return _DeferredLinear.apply(self, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def owe(self, weight: Tensor, bias: Tensor | None, x: Tensor, gradient: Tensor) -> None:
        """Keep what one layer's weights need."""
        self._owed.append((weight, bias, x, gradient))

    @property
    def retained_bytes(self) -> int:
        """Bytes of the tensors that are kept; layers that share an input keep it once."""
        tensors = [tensor for _, _, x, gradient in self._owed for tensor in (x, gradient)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())

    @torch.no_grad()
    def finish(self) -> None:
        """Add to the weights' gradients, and let go of what was kept for them."""
        for weight, bias, x, gradient in self._owed:
            rows = gradient.flatten(0, -2)
            if weight.requires_grad:
                _add(weight, rows.T @ x.flatten(0, -2))
            if bias is not None and bias.requires_grad:
                _add(bias, rows.sum(0))
        self._owed.clear()


class _DeferredLinear(torch.autograd.Function):
    """y = x W^T + b, whose backward gives the gradient of x alone."""

    @staticmethod
    def forward(ctx: Any, later: Deferred, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.later, ctx.parameters = later, (weight, bias)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        if any(ctx.needs_input_grad[2:]):
            ctx.later.owe(*ctx.parameters, x, gradient)
        return None, gradient @ weight if ctx.needs_input_grad[1] else None, None, None


def _add(parameter: Tensor, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient
