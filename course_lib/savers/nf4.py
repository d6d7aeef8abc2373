"""NF4, NormalFloat: weights in 4 bits, whose 16 levels lie where a normal distribution has its numbers.

Trained weights look normal. Even levels would stand where hardly any weight is, and be too few where most are; levels
at quantiles are met about equally often. Two codes lie in a byte, and 64 neighbours share a scale. 32 bits for every
64 weights are half a bit a weight: *double quantisation* turns the scales themselves into codes of 8 bits, in blocks of
256 around their mean, and leaves 8/64 + 32/(64 256) = 0.127 bits.
Source: Dettmers et al. 2023, QLoRA, section 3 and appendix E.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.distributions import Normal

from course_lib.errors import four_parts
from course_lib.savers.codebook import decode, encode
from course_lib.savers.dynamic_levels import dynamic_levels

BLOCK = 64  # weights that share a scale
SCALES_BLOCK = 256  # scales that share one, where they are codes themselves
_LAST = 1 - (1 / 32 + 1 / 30) / 2  # the outermost quantile, since that of 1 is infinite: half a step before the end


@cache
def nf4_levels() -> Tensor:
    """The table in rising order: 7 levels below 0, an exact 0, and 8 above. Shapes: -> float32 (16,)."""
    quantile = Normal(torch.zeros((), dtype=torch.float64), 1.0).icdf
    above = quantile(torch.linspace(0.5, _LAST, 9, dtype=torch.float64))[1:]
    below = -quantile(torch.linspace(0.5, _LAST, 8, dtype=torch.float64))[1:]
    levels = torch.cat([below.flip(0), torch.zeros(1, dtype=torch.float64), above])
    return (levels / levels.max()).float()


@dataclass(frozen=True, kw_only=True)
class NF4:
    """A weight in codes. Shapes of n weights: codes (n/2,), scales (n/64,).

    Scales are float32; or uint8, codes themselves, with `of_scales` (n/64/256,) and their `mean` (1,).
    """

    codes: Tensor
    scales: Tensor
    of_scales: Tensor | None = None
    mean: Tensor | None = None
    shape: torch.Size

    def decode(self) -> Tensor:
        """The weights that the codes say, in float32."""
        scales = self.scales
        if self.of_scales is not None and self.mean is not None:
            levels = _on(dynamic_levels(signed=True), scales)
            scales = decode(scales, self.of_scales, levels, SCALES_BLOCK) + self.mean
        each = torch.stack([self.codes >> 4, self.codes & 15], 1).flatten()
        return decode(each, scales, _on(nf4_levels(), each), BLOCK)[: self.shape.numel()].view(self.shape)

    @property
    def nbytes(self) -> int:
        """What has to be kept."""
        return sum(x.nbytes for x in (self.codes, self.scales, self.of_scales, self.mean) if x is not None)

    @property
    def bits(self) -> float:
        """For each weight, its share of the scales included."""
        return 8 * self.nbytes / self.shape.numel()


def encode_nf4(weight: Tensor, *, double: bool = True) -> NF4:
    """Find each weight's level; with `double` the scales are codes, too.

    Raises: ValueError for an odd number of weights: two codes make a byte.
    """
    if weight.numel() % 2:
        values, way_out = f"{weight.numel()} weights", "leave this one in 16 bits, or pad it"
        raise ValueError(four_parts("encode_nf4", values, "two codes of 4 bits make a byte", way_out))
    codes, scales = encode(weight.detach(), _on(nf4_levels(), weight), BLOCK)
    packed = codes[::2] << 4 | codes[1::2]
    if not double:
        return NF4(codes=packed, scales=scales, shape=weight.shape)
    mean = scales.double().mean().float().view(1)  # in double the order of the sum, a device's own, leaves no trace
    small, of_scales = encode(scales - mean, _on(dynamic_levels(signed=True), weight), SCALES_BLOCK)
    return NF4(codes=packed, scales=small, of_scales=of_scales, mean=mean, shape=weight.shape)


def _on(levels: Tensor, x: Tensor) -> Tensor:
    return levels.to(x.device)
