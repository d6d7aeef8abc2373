"""Two switches: the guard that compares calls before they run, and the ledger that records them.

Both are on, for learning. Timings switch both off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(kw_only=True)
class Settings:
    """What is switched on in this process."""

    guard: bool = True
    ledger: bool = True


active = Settings()


@contextmanager
def settings(*, guard: bool | None = None, ledger: bool | None = None) -> Iterator[None]:
    """Switch guard or ledger for a block; None leaves it as it is. All ranks must switch alike."""
    before = (active.guard, active.ledger)
    active.guard = before[0] if guard is None else guard
    active.ledger = before[1] if ledger is None else ledger
    try:
        yield
    finally:
        active.guard, active.ledger = before
