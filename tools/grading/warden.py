"""Runs a command and ends with it, or when it is ended itself, every process that the command has started.

It stands alone (it imports nothing of the course): what it starts and whatever that leaves behind become its children,
so that none is lost by forking twice or by a session of its own. Whatever of them has been stopped, it wakes. With
`--grader` it wakes the process that has started it: nobody else can, if a submission has stopped all that is above it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
EACH_S = 1.0  # how often it looks for stopped processes


def main() -> int:
    """Run the command line's words; the exit status is the command's."""
    if sys.argv[1:] == ["--grader"]:
        return wake_the_grader(os.getppid())
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # the grader is gone
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    process = subprocess.Popen(sys.argv[1:])
    try:
        while True:
            try:
                return abs(process.wait(timeout=EACH_S))
            except subprocess.TimeoutExpired:
                for pid in descendants(os.getpid()):
                    wake(pid)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all(process)


def wake_the_grader(grader: int) -> int:
    """Look after the grader until it is gone; if its parent is stopped as well, somebody has pressed Ctrl-Z."""
    while os.getppid() == grader:
        if not is_stopped(parent_of(grader)):
            wake(grader)
        time.sleep(EACH_S)
    return 0


def wake(pid: int) -> None:
    """Let a process go on if it has been stopped."""
    if not is_stopped(pid):
        return
    with suppress(OSError):
        os.kill(pid, signal.SIGCONT)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the children, then the grandchildren that come to us thereby, until nobody is left."""
    process.kill()
    while True:
        for child in children(os.getpid()):
            os.kill(child, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    found = children(pid)
    return found + [below for child in found for below in descendants(child)]


def children(pid: int) -> list[int]:
    """A process's children, those that were adopted included."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def is_stopped(pid: int) -> bool:
    return status_of(pid)[:1] == ["T"]


def parent_of(pid: int) -> int:
    return int((status_of(pid) or ["", "0"])[1])


def status_of(pid: int) -> list[str]:
    """The state of a process, its parent and so on, as the system tells them; empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
    return []


if __name__ == "__main__":
    sys.exit(main())
