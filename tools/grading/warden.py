"""Runs a command and ends with it, or when it is ended itself, every process that the command has started.

It stands alone (it imports nothing of the course): what it starts and whatever that leaves behind become its children,
so that none is lost by forking twice or by a session of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    """Run the command line's words; the exit status is the command's."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # the grader is gone
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    process = subprocess.Popen(sys.argv[1:])
    try:
        return abs(process.wait())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all(process)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the children, then the grandchildren that come to us thereby, until nobody is left."""
    process.kill()
    while True:
        for child in children():
            os.kill(child, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def children() -> list[int]:
    """This process's children, those that were adopted included."""
    tasks = Path("/proc/self/task")
    lists = [(task / "children").read_text().split() for task in tasks.iterdir()] if tasks.exists() else []
    return [int(number) for found in lists for number in found]


if __name__ == "__main__":
    sys.exit(main())
