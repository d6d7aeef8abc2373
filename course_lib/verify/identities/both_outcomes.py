"""Rounding by chance, without chance: both outcomes of each number, weighed by how likely they are."""

from __future__ import annotations

from course_lib.less.random_rounding import QSGD
from course_lib.verify.identities.averaged import normal_numbers, off


def expectation(compressor: QSGD) -> float:
    """The mean over both outcomes is the number itself."""
    x = normal_numbers(1, 1, 500)[0, 0]
    low, high, chance = compressor.outcomes(x)
    return off((1 - chance) * low + chance * high, x)


def variance_over_bound(compressor: QSGD) -> float:
    """By how much the exact variance exceeds omega times the squared length."""
    x = normal_numbers(1, 1, 500)[0, 0]
    low, high, chance = compressor.outcomes(x)
    exact = ((1 - chance) * (low - x).square() + chance * (high - x).square()).sum()
    most = compressor.omega(len(x)) * x.square().sum()
    return float((exact - most).clamp_min(0) / most)
