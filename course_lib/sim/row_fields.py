"""Fields of a published row: objects, whole numbers and others, each of the right kind or refused."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any


def part(row: Mapping[str, Any], key: str, *, optional: bool = False) -> Mapping[str, Any]:
    """An object within the row."""
    found = row.get(key)
    if isinstance(found, Mapping):
        return found
    if found is None and optional:
        return {}
    raise ValueError(f"lacks {key}" if found is None else f"{key} is not an object of fields")


def whole(part: Mapping[str, Any], key: str, *, optional: bool = False) -> int | None:
    """A positive whole number, or None if it is not there."""
    found = part.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found) or found != int(found):
        raise ValueError(f"{key}={found!r} is not a whole number")
    if found < 1 and not (optional and found == 0):
        raise ValueError(f"{key}={found!r} is not positive")
    return int(found) or None


def number(part: Mapping[str, Any], key: str) -> float | None:
    """A positive number, or None if it is not there."""
    found = part.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found) or found <= 0:
        raise ValueError(f"measured {key}={found!r} is not a positive number")
    return float(found)


def need(found: int | None, name: str) -> int:
    if found is None:
        raise ValueError(f"lacks {name}")
    return found
