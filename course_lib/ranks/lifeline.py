"""No rank outlives the notebook that started it, however that notebook ends.

Three independent cords, because each alone has a gap:
- a thread waits on a socket whose other end only the notebook's process holds; its end means that process is gone;
- the fork server ends when its pipe to the notebook does, and looks each second whether the notebook still lives;
- on Linux `prctl(PR_SET_PDEATHSIG)` lets the kernel kill a rank whose fork server ended, even a rank that is stopped
  or stuck in C code.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

from course_lib.ranks.wire import RankEnd

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> bool:
    """Ask the operating system to kill this process when its parent dies; False where that does not exist."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl is not None and prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0


def watch(lifeline: RankEnd, answer: Callable[[], bytes]) -> None:
    """Start the thread that answers each request on `lifeline` and ends this process when the other end is gone."""

    def attend() -> None:
        try:
            while True:
                number = lifeline.hear().number
                lifeline.answer(answer(), number)
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)  # this rank, and what it has forked

    threading.Thread(target=attend, name="lifeline", daemon=True).start()
