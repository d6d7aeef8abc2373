"""What counts as a number: Python's, NumPy's and PyTorch's alike, wherever a plain one is asked for."""

from __future__ import annotations

import operator
import reprlib
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


def whole_numbers(values: Any) -> list[int] | str:
    """A list of whole numbers, however it is held; of what is none, what it is instead.

    >>> whole_numbers(range(3)), whole_numbers([1, 2.5]), whole_numbers(7)
    ([0, 1, 2], 'a list with 2.5', 'int')
    """
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list | tuple | range):
        return type(values).__name__
    numbers = [whole_of(value) for value in values]
    strange = (reprlib.repr(value) for value, number in zip(values, numbers, strict=True) if number is None)
    if (first := next(strange, None)) is not None:
        return f"a list with {first}"
    return [number for number in numbers if number is not None]


def _as_float(value: Any) -> float | None:
    """Of a fraction, a decimal."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
