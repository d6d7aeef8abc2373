"""Cut a row in parts: as many in each, or as equal costs as there can be. What runs and what counts both cut here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from math import isqrt
from typing import Literal

from course_lib.errors import four_parts

# How ranks share y = W x: each has all of W, rows of it and so of y ("out"), or columns of it and so of x ("in").
MatrixCut = Literal["replicated", "out", "in"]
TRANSPOSED: dict[MatrixCut, MatrixCut] = {"replicated": "replicated", "out": "in", "in": "out"}  # of its transpose


def split_sizes(length: int, parts: int) -> tuple[int, ...]:
    """Sizes of the `parts` chunks that `torch.tensor_split` makes: the first `length % parts` have one more.

    >>> split_sizes(7, 3)
    (3, 2, 2)
    """
    small, longer = divmod(length, parts)
    return (small + 1,) * longer + (small,) * (parts - longer)


def divisors(length: int) -> list[int]:
    """In how many equal parts it can be cut, fewest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [parts for parts in range(1, isqrt(length) + 1) if length % parts == 0]
    return sorted({*small, *(length // parts for parts in small)})


def balanced_sizes(costs: Sequence[float], n_stages: int) -> tuple[int, ...]:
    """How many layers each stage gets if the most expensive stage is to be as cheap as possible.

    `costs` has one number for each layer, say its parameters or its seconds; layers keep their order. For as many
    layers on each stage there is `split_sizes`.

    >>> balanced_sizes([8, 1, 1, 1, 5], 2)
    (1, 4)

    Raises: ValueError for more stages than layers.
    """
    if not 1 <= n_stages <= len(costs):
        values, rule = f"{n_stages} stages, {len(costs)} layers", "each stage has a layer"
        raise ValueError(four_parts("balanced_sizes", values, rule, f"choose n_stages in 1..{len(costs)}"))
    before = [0.0, *accumulate(costs)]

    @cache
    def best(first: int, stages: int) -> tuple[float, tuple[int, ...]]:
        """The cost of the most expensive stage, and the sizes, for the layers from `first` on."""
        if stages == 1:
            return before[-1] - before[first], (len(costs) - first,)
        choices = []
        for end in range(first + 1, len(costs) - stages + 2):
            rest, sizes = best(end, stages - 1)
            choices.append((max(before[end] - before[first], rest), (end - first, *sizes)))
        return min(choices)

    return best(0, n_stages)[1]
