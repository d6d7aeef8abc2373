"""No rank outlives the notebook that started it, however that notebook ends.

Two independent cords, because either alone has a gap:
- a thread waits on a pipe whose other end only the notebook's process holds; its end means that process is gone;
- on Linux `prctl(PR_SET_PDEATHSIG)` lets the kernel kill a rank whose fork server died, even one stuck in C code.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> bool:
    """Ask the operating system to kill this process when its parent dies; False where that does not exist."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl is not None and prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0


def watch(lifeline: Connection, folder: str, answer: Callable[[], object]) -> None:
    """Start the thread that answers each request on `lifeline` and ends this process when the other end is gone."""

    def attend() -> None:
        while True:
            try:
                lifeline.recv()
                lifeline.send(answer())
            except (EOFError, OSError):
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(1)

    threading.Thread(target=attend, name="lifeline", daemon=True).start()
