"""Numbers in 8 bits that are floats: every number keeps a few digits of its own size, so that outliers do little harm.

e4m3 has four bits for the size and three for the digits, and ends at 448: it is for weights and activations. e5m2 has
a bit more for the size and ends at 57,344: it is for gradients, whose sizes differ most. A tensor is divided by a scale
first, so that its largest number becomes the largest of the format. Without one, what is too large is cut to 448
without a word in e4m3, and becomes inf in e5m2.
Source: Micikevicius et al. 2022, FP8 Formats for Deep Learning, sections 3 and 3.1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class FP8(NamedTuple):
    """A tensor in 8 bits, and what to multiply it by. Shapes: (...), and a number in float32."""

    values: Tensor
    scale: Tensor

    def decode(self) -> Tensor:
        """What it says, in float32."""
        return self.values.float() * self.scale


def to_fp8(x: Tensor, dtype: torch.dtype = E4M3) -> FP8:
    """Divide by one scale for the tensor, then round."""
    least = torch.finfo(torch.float32).tiny  # of a tensor of zeros, too
    scale = (x.detach().float().abs().max() / torch.finfo(dtype).max).clamp(min=least)
    return FP8((x.float() / scale).to(dtype), scale)


class FP8Linear(nn.Module):
    """y = x W^T + b, of which all three products, one forward and two backward, multiply numbers of 8 bits.

    The weight itself stays as it is, for the optimizer to change; backward keeps x and W in 8 bits.
    Shapes: (..., in) -> (..., out).
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # (T, in)
        y: Tensor = _FP8Product.apply(rows, self.weight)
        y = y.view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class _FP8Product(torch.autograd.Function):
    """x W^T of (T, in) and (out, in)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, weight8 = to_fp8(x), to_fp8(weight)
        ctx.save_for_backward(*x8, *weight8)
        ctx.dtype = x.dtype
        return _product(x8, weight8, x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x_values, x_scale, weight_values, weight_scale = ctx.saved_tensors
        g8 = to_fp8(gradient, E5M2)
        turned = FP8(g8.values.t().contiguous(), g8.scale)
        of_x = _product(g8, FP8(weight_values.t().contiguous(), weight_scale), ctx.dtype)
        of_weight = _product(turned, FP8(x_values.t().contiguous(), x_scale), ctx.dtype)
        return of_x, of_weight


def _product(a: FP8, b: FP8, dtype: torch.dtype) -> Tensor:
    """a b^T: sums of products of 8 bits in float32, times both scales. Shapes: (n, k), (m, k) -> (n, m)."""
    return torch._scaled_mm(a.values, b.values.t(), a.scale, b.scale, out_dtype=dtype)
