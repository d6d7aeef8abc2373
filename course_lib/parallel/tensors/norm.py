"""A norm over features of which each rank has some."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_lib.parallel.tensors.region import Region


class ParallelRMSNorm(nn.Module):
    """RMSNorm over all features, of which each rank has some: their squares are added up.

    As theirs do, one of `transformers` computes in float32, whatever the model is in.
    Shapes: (B, S, W/tp) -> (B, S, W/tp), weight (W/tp). `copies` ranks have the same features.
    Cost: an all-reduce of (B, S, 1) in forward and one in backward.
    """

    def __init__(self, norm: nn.Module, region: Region, *, width: int, copies: int = 1) -> None:
        super().__init__()
        self.weight: Tensor = norm.get_parameter("weight")
        self.region = region
        self.terms = width * copies  # so many squares are added up
        self.in_float32 = not isinstance(norm, nn.RMSNorm)
        self.eps = next(getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 and not self.in_float32 else x.float()
        squares = wide.square().sum(-1, keepdim=True)  # (B, S, 1), of this rank's features
        # Each rank goes on with the sum in its own way, so backward adds up as well.
        squares = self.region.operators.sum_in_region(squares)
        scale = torch.rsqrt(squares / self.terms + self.eps)
        return (self.weight * (wide * scale)).to(x.dtype)
