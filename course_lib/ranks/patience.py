"""How long the notebook waits for a task: a limit, which a rank that gets on may ask to begin anew."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_LONGEST_WAIT_S = 3600.0  # at a time: the system takes no number of seconds that may be infinite
_UNHURRIED = "COURSE_LIB_UNHURRIED"  # an environment variable; set where no person waits: tests, builds
_SHORT_S, _TIMES = 30.0, 10  # below are limits that are there to be met, by a cell that shows a hang
_PAUSE_S = 1.0  # between two requests of a rank: a step of training may take less than a message
_ask: Callable[[float], None] | None = None
_asked_at = 0.0


class Limit:
    """Seconds until a wait is over; infinitely many for a wait without a limit."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.renewed = _patient(seconds), False
        self._end = time.monotonic() + self.seconds

    @property
    def left_s(self) -> float:
        """What may be waited for next; not above 0 once they are over."""
        return min(self._end - time.monotonic(), _LONGEST_WAIT_S)

    def renew(self, seconds: float) -> None:
        """Begin anew: there was progress."""
        self.seconds, self.renewed = _patient(seconds), True
        self._end = time.monotonic() + self.seconds

    def end_within(self, seconds: float) -> None:
        """Wait no longer than that from now on."""
        self._end = min(self._end, time.monotonic() + seconds)

    def __str__(self) -> str:
        return f"{'no progress for' if self.renewed else 'not finished after'} {self.seconds:g} s"


def _patient(seconds: float) -> float:
    """What a limit is where no person waits: honest work may take its time on a machine that does other things."""
    return seconds * _TIMES if _UNHURRIED in os.environ and seconds >= _SHORT_S else seconds


def answer_by(ask: Callable[[float], None]) -> None:
    """Let `more_time` reach whoever waits for this process."""
    global _ask
    _ask = ask


def more_time(seconds: float) -> None:
    """Say that this process gets on, and that the next such word comes within `seconds`.

    On a rank of the pool the task's limit begins anew; where nobody waits nothing happens.
    Cost: one small message, at most one a second.
    """
    global _asked_at
    if _ask is not None and time.monotonic() - _asked_at >= _PAUSE_S:
        _asked_at = time.monotonic()
        _ask(seconds)
