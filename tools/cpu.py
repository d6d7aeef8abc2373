"""Runs a command and tells the CPU seconds of all processes that it started: `python -m tools.cpu FILE command …`.

A process counts when its parent has waited for it. Ranks end after the fork server that made them, so nobody would:
on Linux this process is made the parent of such orphans. What has not ended a second after the command is not counted.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_S = 1.0


def main(file: str, *words: str) -> int:
    """Return the command's exit status; write the seconds into `file`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    command, status = subprocess.Popen(words), None
    while status is None:
        pid, ended = os.wait()
        status = os.waitstatus_to_exitcode(ended) if pid == command.pid else None
    _wait_for_orphans(time.monotonic() + _ORPHANS_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(file).write_text(f"{used.ru_utime + used.ru_stime:.2f}")
    return status if status >= 0 else 128 - status  # as a shell says that a signal ended it


def _wait_for_orphans(until: float) -> None:
    while time.monotonic() < until:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # none is left
            return
        time.sleep(0 if pid else 0.01)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
