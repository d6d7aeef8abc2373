"""One identity: what it claims, and a run that says how far off it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_ROUNDED = 1e-12  # sums of a few float64 numbers in another order


@dataclass(frozen=True, kw_only=True)
class Identity:
    """`found` runs it and gives the largest difference, relative to the largest number; `limit` 0 is to the bit."""

    claim: str
    found: Callable[[], float]
    limit: float = _ROUNDED
