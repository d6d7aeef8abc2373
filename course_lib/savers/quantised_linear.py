"""A frozen linear map that keeps its weight as NF4 codes alone: QLoRA's half that is not trained.

The weight is spread out again where it is used, once in forward and once in backward, and let go of at once. Autograd
would keep the spread-out weight in between, so the map tells it what to do: backward needs the codes, which are there.
The gradient goes through the map to what lies before it, and stops at the codes: whole numbers have none.
Source: Dettmers et al. 2023, QLoRA, section 3, equation 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.savers.nf4 import NF4, encode_nf4
from course_lib.savers.targets import ALL, replace_linears


class NF4Linear(nn.Module):
    """y = x W^T + b, with W in codes. Shapes: (..., in) -> (..., out).

    Codes and scales are parameters without a gradient, so that whoever shares parameters among ranks shares them too.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        found = encode_nf4(linear.weight)
        assert found.of_scales is not None and found.mean is not None
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype = linear.weight.dtype  # of the weight that was there
        self.codes = _frozen(found.codes)
        self.scales = _frozen(found.scales)
        self.of_scales = _frozen(found.of_scales)
        self.mean = _frozen(found.mean)
        self.bias = linear.bias

    @property
    def shape(self) -> torch.Size:
        """Of the weight that was there: (out, in)."""
        return torch.Size((self.out_features, self.in_features))

    def dense(self) -> Tensor:
        """The weight that the codes say. Shapes: -> (out, in)."""
        kept = NF4(codes=self.codes, scales=self.scales, of_scales=self.of_scales, mean=self.mean, shape=self.shape)
        return kept.decode().to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _ByCodes.apply(x, self)
        return y if self.bias is None else y + self.bias


class _ByCodes(torch.autograd.Function):
    """x W^T; backward spreads W out a second time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: NF4Linear) -> Tensor:
        ctx.layer = layer
        return x @ layer.dense().t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.dense().to(gradient.dtype), None  # short, where autocast made the product short


def quantise(model: nn.Module, targets: Sequence[str] = ALL) -> nn.Module:
    """Replace the linear maps that `targets` name, by default those of all layers, by maps that keep codes.

    Raises: ValueError for a pattern that names no linear map.
    """
    replace_linears("quantise", model, targets, nn.Linear, NF4Linear)
    return model


def _frozen(x: Tensor) -> nn.Parameter:
    return nn.Parameter(x, requires_grad=False)
