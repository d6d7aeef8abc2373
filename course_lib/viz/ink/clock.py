"""How figures write times: in a unit that suits them, or as forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course_lib.schedules import Durations

DIGITS = 9  # of a second: an emulated clock's rounding errors must not change a picture


class Clock(NamedTuple):
    """How times are written: as seconds, or as forward passes."""

    factor: float
    unit: str

    def says(self, seconds: float) -> str:
        """A time with its unit, to three digits; passes, which add up exactly, to four."""
        return f"{round(seconds, DIGITS) * self.factor:.{4 if self.unit == 'F' else 3}g} {self.unit}"

    @property
    def axis(self) -> str:
        """What stands below the axis."""
        return "time in forward passes (F = 1)" if self.unit == "F" else f"time ({self.unit})"


def clock_of(durations: Durations | Sequence[Durations], longest_s: float) -> Clock:
    """Forward passes where some forward takes exactly 1, as in `Durations()`; else seconds."""
    every = [durations] if isinstance(durations, Durations) else durations
    return Clock(1.0, "F") if any(one.forward_s == 1 for one in every) else Clock(*time_unit(longest_s))


def time_unit(span_s: float) -> tuple[float, str]:
    """Factor and name of the unit in which the span is a number between 1 and 1000."""
    return (1.0, "s") if span_s >= 1 else (1e3, "ms") if span_s >= 1e-3 else (1e6, "µs")
