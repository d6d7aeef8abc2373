"""How two tensors become one: what a reducing collective does with each message that arrives.

A NaN on any rank makes MAX and MIN NaN, as in torch.maximum; gloo's own may lose it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.distributed import ReduceOp

Combine = Callable[[Tensor, Tensor], object]


def _add(into: Tensor, x: Tensor) -> None:
    into.add_(x)


def _maximum(into: Tensor, x: Tensor) -> None:
    torch.maximum(into, x, out=into)


def _minimum(into: Tensor, x: Tensor) -> None:
    torch.minimum(into, x, out=into)


# AVG is a sum on the way; `finish` divides once, at the end.
COMBINE: dict[object, Combine] = {
    ReduceOp.SUM: _add,
    ReduceOp.AVG: _add,
    ReduceOp.MAX: _maximum,
    ReduceOp.MIN: _minimum,
}


@cache
def exists(op: object, dtype: torch.dtype) -> bool:
    """Whether torch has this reduction of this dtype. Tried on one number, it is known before anything is sent."""
    try:
        one = torch.zeros(1, dtype=dtype)
        COMBINE[op](one, one.clone())
        finish(one, op, 1)
    except RuntimeError:
        return False
    return True


def finish(x: Tensor, op: object, world_size: int) -> Tensor:
    """Divide a finished sum by the world size if `op` is AVG."""
    return x.div_(world_size) if op == ReduceOp.AVG else x
