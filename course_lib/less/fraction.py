"""How many numbers a fraction of a vector is."""

from __future__ import annotations

import math

from course_lib.errors import four_parts


def check_fraction(operation: str, fraction: float) -> None:
    """Raises: ValueError unless something is kept and nothing twice."""
    if not 0 < fraction <= 1:
        rule = "of a vector some numbers are sent, and at most all"
        way_out = "choose 0 < fraction <= 1, for example 0.01 for one number in a hundred"
        raise ValueError(four_parts(operation, f"fraction={fraction}", rule, way_out))


def kept(fraction: float, size: int) -> int:
    """k: the fraction of `size` numbers, rounded up; one at least, so that a small vector is not forgotten."""
    return min(size, max(1, math.ceil(round(fraction * size, 6))))  # 0.07 * 100 is 7.000000000000001
