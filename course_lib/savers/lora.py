"""LoRA: beside a frozen matrix W a product of two narrow ones, B A, is trained in its place.

    y = W x + s B A x        W (out, in) frozen, A (r, in) random, B (out, r) born 0

B is born 0, so that training starts from the model as it is, to the bit. A must not be: the gradient of B has A x in
it and that of A has B, so that with both at 0 nothing would ever move. The factor s is alpha/r in the paper, so that
another rank needs no other learning rate. For large ranks that is too little, and alpha/sqrt(r) holds better.
Source: Hu et al. 2021, LoRA, section 4.1; Kalajdzievski 2023, rsLoRA, section 3 (the root); Dettmers et al. 2023,
QLoRA, section 4 (all matrices, not queries and values alone).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.errors import four_parts
from course_lib.savers.frozen_map import MAPS, FrozenMap, device_of, dtype_beside, plain_map, sizes_of, weight_of
from course_lib.savers.targets import ALL, replace_linears

Scaling = Literal["rank", "root"]  # alpha/r, alpha/sqrt(r)


def begin_a(a: Tensor) -> None:
    """Draw A as `nn.Linear` begins; of a model that was made on meta once its memory is there."""
    nn.init.kaiming_uniform_(a, a=math.sqrt(5))


class LoRALinear(nn.Module):
    """A frozen map, be it in codes, and the two matrices beside it. Shapes: (..., in) -> (..., out).

    Between A and B a token has only r numbers: where ranks share the matrix, these are what crosses from rank to rank.
    """

    def __init__(self, base: FrozenMap, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        dtype, device = dtype_beside(base), device_of(base)
        outputs, inputs = sizes_of(base)
        self.A = nn.Parameter(torch.empty(rank, inputs, dtype=dtype, device=device))
        self.B = nn.Parameter(torch.zeros(outputs, rank, dtype=dtype, device=device))
        begin_a(self.A)
        self.crossing: Callable[[Tensor], Tensor] = lambda low: low  # for who cuts the map

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        if not torch.is_autocast_enabled(x.device.type):  # which takes x as it is, and so keeps no second copy of it
            x = x.to(self.A.dtype)
        low = F.linear(x, self.A)  # (..., r)
        low = self.crossing(low)
        return (y + F.linear(low, self.B) * self.scale).to(y.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One map with the weight W + s B A, in the dtype of W: a short one may round the update away."""
        weight = weight_of(self.base)
        return plain_map((weight + self.scale * self.B @ self.A).to(weight.dtype), self.base.bias)


def add_lora(
    model: nn.Module,
    rank: int = 8,
    alpha: float | None = None,
    *,
    scaling: Scaling = "rank",
    targets: Sequence[str] = ALL,
) -> nn.Module:
    """Freeze a model, and put two trained matrices beside each linear map that `targets` name.

    Without `alpha` the factor s is 1.
    Raises: ValueError for a rank below 1, another scaling, and a pattern that names no linear map.
    """
    if rank < 1:
        raise ValueError(four_parts("add_lora", f"rank={rank}", "B A has a rank of at least 1", "give rank >= 1"))
    if scaling not in get_args(Scaling):
        way_out = f"choose from {', '.join(get_args(Scaling))}"
        raise ValueError(four_parts("add_lora", f"scaling={scaling!r}", "alpha is divided by r or its root", way_out))
    divisor = rank if scaling == "rank" else math.sqrt(rank)
    scale = 1.0 if alpha is None else alpha / divisor
    model.requires_grad_(False)
    replace_linears("add_lora", model, targets, MAPS, lambda base: LoRALinear(base, rank, scale))
    return model
