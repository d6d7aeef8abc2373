"""What an adapter stands beside: a linear map that is not trained, plain, transposed or in codes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_lib.models.linear_maps import TransposedMap
from course_lib.savers.quantised_linear import NF4Linear

FrozenMap = nn.Linear | NF4Linear | TransposedMap
MAPS = (nn.Linear, NF4Linear, TransposedMap)


def sizes_of(base: FrozenMap) -> tuple[int, int]:
    """Features that come out, and that go in."""
    return (base.nf, base.nx) if isinstance(base, TransposedMap) else (base.out_features, base.in_features)


def weight_of(base: FrozenMap) -> Tensor:
    """The matrix that it multiplies by. Shapes: -> (out, in)."""
    if isinstance(base, NF4Linear):
        return base.dense()
    return base.weight.T if isinstance(base, TransposedMap) else base.weight


def dtype_beside(base: FrozenMap) -> torch.dtype:
    """Of what is trained beside it: at least 32 bits, as an optimizer's own copy of a short weight has."""
    own = base.dtype if isinstance(base, NF4Linear) else base.weight.dtype
    return torch.promote_types(own, torch.float32)


def device_of(base: FrozenMap) -> torch.device:
    """Where its numbers lie."""
    return base.codes.device if isinstance(base, NF4Linear) else base.weight.device


def plain_map(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear map with this weight and this bias, neither of them trained."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
