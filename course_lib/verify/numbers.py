"""What counts as a number: Python's, NumPy's and PyTorch's alike, wherever a plain one is asked for."""

from __future__ import annotations

import operator
from typing import Any


def number_of(value: Any) -> int | float | None:
    """The number that a value holds, whole ones as `int`; None if it is none. A truth value and a text are none.

    >>> number_of(3), number_of(2.5), number_of("3"), number_of(True), number_of([1, 2])
    (3, 2.5, None, None, None)
    """
    try:
        value = value.item() if hasattr(value, "item") else value  # an array or a tensor of one number
    except (TypeError, ValueError, RuntimeError):  # of several
        return None
    if isinstance(value, bool | str | bytes):
        return None
    if isinstance(value, int | float):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return _as_float(value)


def whole_of(value: Any) -> int | None:
    """As `number_of`, but None also of a number that is not held as a whole one: 3.0 is none."""
    number = number_of(value)
    return number if isinstance(number, int) else None


def _as_float(value: Any) -> float | None:
    """Of a fraction, a decimal."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
