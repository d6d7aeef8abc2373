"""Three quadratics on which top-1 without a memory grows for ever, however small the learning rate.

f_i(x) = <a_i, x>^2 + |x|^2 / 4 with a_1 = (-3, 2, 2) and its rotations. At x = (t, t, t) worker 1's gradient is
t (-5.5, 4.5, 4.5), so top-1 sends the -5.5 and drops two numbers of the other sign. So do the others, and the mean of
what is sent is -5.5/3 t everywhere, where the mean gradient is +3.5/3 t. A step goes uphill, to another (t, t, t).
Source: Beznosikov et al. 2020, On Biased Compression for Distributed Learning, example 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.less.methods import Memory, Method

_SIZE = 3  # numbers, and workers
_DIRECTIONS = torch.tensor([[-3.0, 2.0, 2.0], [2.0, -3.0, 2.0], [2.0, 2.0, -3.0]], dtype=torch.float64)
GROWTH = 11 / 6  # of x in a step of rate 1 with top-1 alone: x becomes (1 + 11/6 rate) x


def three_gradients(x: Tensor) -> Tensor:
    """Of the three workers at one point. Shapes: (3,) -> (3 workers, 3)."""
    return 2 * (_DIRECTIONS @ x)[:, None] * _DIRECTIONS + x / 2


def three_quadratics(method: Method, *, rate: float, steps: int) -> list[float]:
    """f, the mean of the three, from (1, 1, 1) on, before the first step and after each."""
    x, memory = torch.ones(_SIZE, dtype=torch.float64), Memory(shapes=[(_SIZE,)])
    heights = [_height(x)]
    for _ in range(steps):
        x = x - rate * method.agree(three_gradients(x), memory)
        heights.append(_height(x))
    return heights


def _height(x: Tensor) -> float:
    return (((_DIRECTIONS @ x) ** 2).mean() + x @ x / 4).item()
