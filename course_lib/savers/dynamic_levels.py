"""256 levels for numbers of very unlike size, such as an optimizer's states: many small decades, each cut finer.

Between 0.1 and 1 lie 64 levels, between 0.01 and 0.1 half as many, and so on down to one level above 0.000001. So a
code of 8 bits spends some of them on the decade, and the rest on the place in it; how many, differs from decade to
decade, hence *dynamic*. Numbers that are never negative, as Adam's second moment, get twice as many in each decade.
Source: Dettmers 2016, 8-Bit Approximations for Parallelism in Deep Learning, section 2; Dettmers et al. 2022,
section 2.2.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_DECADES = 7


@cache
def dynamic_levels(*, signed: bool) -> Tensor:
    """The table in rising order, the same whatever PyTorch's default dtype is. Shapes: -> float32 (256,)."""
    positive: list[Tensor] = []
    for decade in range(_DECADES):
        n_levels = 2**decade if signed else 2 ** (decade + 1)
        edges = torch.linspace(0.1, 1, n_levels + 1, dtype=torch.float32)
        middles = (edges[:-1] + edges[1:]) / 2
        positive.append(middles * 10.0 ** (decade - _DECADES + 1))
    of_decades = torch.cat(positive)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float32)
    found = [of_decades, ends, *([-of_decades] if signed else [])]
    return torch.cat(found).sort().values
