"""A line of the fault matrix: what is done to which part, what has to be said of it, and what may be lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of a fault. `seconds` go from the fault to its report; `left` counts processes after the end."""

    said: str
    seconds: float
    lost: str
    left: int = 0


class LeftOut(Exception):
    """This machine lacks what a line needs; the text says what."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One fault in one part of the course."""

    part: str
    fault: str
    done: str
    do: Callable[[Path], Seen]  # gets an empty folder
    said: str  # a regular expression
    lost: str  # a regular expression too, for all of it
    within_s: float

    def broken(self, seen: Seen) -> str:
        """Why the line does not hold; empty if it does."""
        reasons = {
            f"expected to be said: {self.said}": not re.search(self.said, seen.said, re.DOTALL),
            f"expected to be lost: {self.lost}": not re.fullmatch(self.lost, seen.lost),
            f"{seen.left} processes are left": seen.left > 0,
            f"it took more than {self.within_s:g} s": seen.seconds > self.within_s,
        }
        return "; ".join(reason for reason, holds in reasons.items() if holds)
