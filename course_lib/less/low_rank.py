"""PowerSGD's algebra of one matrix: two thin factors, each linear in the gradient, so that ranks sum them.

Every rank holds the same directions Q. In a step

    Q = orthonormal(Q)                    a direction that the last gradient lacked is there again
    P = mean over ranks of M Q            the caller's first all-reduce       (a, r)
    P = orthonormal(P)                    the same on every rank
    Q = mean over ranks of M^T P          the caller's second all-reduce      (b, r)

and everybody takes P Q^T for the mean gradient. Since M Q is linear in M, the result for many ranks is that for their
mean alone. Q goes into the next step: one round of the power method for each gradient, a warm start.
Source: Vogels, Karimireddy and Jaggi 2019, PowerSGD, algorithms 1 and 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.errors import four_parts


def first_directions(
    shape: tuple[int, int], rank: int, draws: torch.Generator, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Random directions to begin with; no more of them than the matrix has rows or columns. Shapes: -> (b, r).

    All ranks have to draw the same.
    Raises: ValueError for a rank below 1.
    """
    if rank < 1:
        raise ValueError(four_parts("first_directions", f"rank={rank}", "a factor has columns", "choose rank >= 1"))
    return torch.randn(shape[1], min(rank, *shape), generator=draws, dtype=dtype)


def left_factor(matrix: Tensor, directions: Tensor) -> Tensor:
    """M Q: where the matrix takes each direction. Shapes: (..., a, b), (..., b, r) -> (..., a, r)."""
    return matrix @ directions


def orthonormal(factor: Tensor) -> Tensor:
    """Columns of length 1 at right angles that span the same space; of equal bits equal bits. Shapes: (..., a, r)."""
    return torch.linalg.qr(factor).Q


def right_factor(matrix: Tensor, left: Tensor) -> Tensor:
    """M^T P for an orthonormal P; of all factors Q it brings P Q^T nearest to M. Shapes: -> (..., b, r)."""
    return matrix.mT @ left


def from_factors(left: Tensor, right: Tensor) -> Tensor:
    """P Q^T, what everybody takes for the mean gradient. Shapes: (..., a, r), (..., b, r) -> (..., a, b)."""
    return left @ right.mT
