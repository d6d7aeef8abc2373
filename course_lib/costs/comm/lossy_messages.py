"""Bytes of one compressed message of `size` numbers, by compressor: what the packed numbers weigh, and nothing else.

top-k    k values and k places in int32           k = the fraction of size, rounded up
rand-k   k values; both sides draw the places
sign     one bit a number, and one scale
QSGD     one of 2 levels + 1 signed levels a number, in 2, 4 or 8 bits, and a norm for each bucket
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from course_lib.errors import four_parts

_PLACE_BYTES = 4


def top_k_bytes(size: int, fraction: float, itemsize: int) -> int:
    """A value and a place for each number that is sent."""
    return _kept(size, fraction) * (itemsize + _PLACE_BYTES)


def rand_k_bytes(size: int, fraction: float, itemsize: int) -> int:
    """The values alone."""
    return _kept(size, fraction) * itemsize


def sign_bytes(size: int, itemsize: int) -> int:
    """Eight numbers to a byte, and the scale."""
    return itemsize + ceil(size / 8)


def qsgd_bytes(size: int, levels: int, bucket: int, itemsize: int) -> int:
    """The levels, and a norm for each bucket, of which the last may be short.

    Raises: ValueError for levels that a byte does not hold.
    """
    values = 2 * levels + 1
    bits = next((bits for bits in (2, 4, 8) if values <= 2**bits), None)
    if levels < 1 or bits is None:
        rule = "a signed level is one of 2 levels + 1 values in a byte"
        raise ValueError(four_parts("qsgd_bytes", f"levels={levels}", rule, "choose 1 <= levels <= 127"))
    return ceil(size * bits / 8) + ceil(size / bucket) * itemsize


def _kept(size: int, fraction: float) -> int:
    """At least one. The fraction is taken as it is written: 0.07 of 100 are 7."""
    return max(1, ceil(Fraction(str(fraction)) * size))
