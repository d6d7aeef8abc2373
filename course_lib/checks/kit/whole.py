"""Whole numbers, also those of NumPy and of tensors."""

from __future__ import annotations

import operator
from typing import Any


def whole(value: Any) -> int | None:
    """None if it is no whole number; a truth value is none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:  # also by a tensor of several
        return None
