"""(IA)^3: what is trained is one factor for each feature, which makes it larger or smaller; all matrices are frozen.

Factors are born 1, so that training starts from the model as it is. They stand at three places of a layer: at the keys,
the values, and the inner features of the feed-forward block, where its last matrix reads them.
Source: Liu et al. 2022, Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning,
section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from course_lib.savers.frozen_map import MAPS, FrozenMap, device_of, dtype_beside, plain_map, sizes_of, weight_of
from course_lib.savers.targets import replace_linears

_OUTPUTS = ("layers.*.attention.k_proj", "layers.*.attention.v_proj")
_INPUTS = ("layers.*.ffn.down_proj",)


class IA3Linear(nn.Module):
    """A frozen map with a factor for each of its outputs, or of its inputs. Shapes: (..., in) -> (..., out)."""

    def __init__(self, base: FrozenMap, *, on_input: bool) -> None:
        super().__init__()
        self.base, self.on_input = base, on_input
        features = sizes_of(base)[on_input]
        self.factors = nn.Parameter(torch.ones(features, dtype=dtype_beside(base), device=device_of(base)))

    def forward(self, x: Tensor) -> Tensor:
        if self.on_input:
            y: Tensor = self.base((x * self.factors).to(x.dtype))
            return y
        y = self.base(x)
        return (y * self.factors).to(y.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One map whose columns, or rows and bias, are multiplied, in the dtype of its weight."""
        weight, bias = weight_of(self.base), self.base.bias
        if self.on_input:
            return plain_map((weight * self.factors).to(weight.dtype), bias)
        scaled = None if bias is None else (bias * self.factors).to(bias.dtype)
        return plain_map((weight * self.factors[:, None]).to(weight.dtype), scaled)


def add_ia3(model: nn.Module, outputs: Sequence[str] = _OUTPUTS, inputs: Sequence[str] = _INPUTS) -> nn.Module:
    """Freeze a model, and let it train a factor for each output, or input, of the maps that these patterns name.

    Raises: ValueError for a pattern that names no linear map.
    """
    model.requires_grad_(False)
    for targets, on_input in ((outputs, False), (inputs, True)):
        make = partial(IA3Linear, on_input=on_input)
        replace_linears("add_ia3", model, targets, MAPS, make)
    return model
