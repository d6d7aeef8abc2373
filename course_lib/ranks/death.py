"""What is known of a rank whose process has ended: its signal, what that usually means, and its last Python line."""

from __future__ import annotations

import os
import signal

from course_lib.ranks.stacks import parse_stack

_MEANS = {
    "SIGKILL": "the system sends it when memory is used up, a batch system or a person to end a process",
    "SIGSEGV": "C code used memory that is not its own",
    "SIGBUS": "C code used memory that is not there, as when /dev/shm is full",
    "SIGABRT": "C code gave up, as after a failed check or a message of the wrong length",
    "SIGFPE": "C code divided an integer by zero",
    "SIGILL": "C code was made for another processor",
    "SIGTERM": "somebody asked it to end, as a batch system does",
    "SIGXCPU": "its limit of processor time is used up",
}


def death_file(folder: str, rank: int) -> str:
    """Where a rank's `faulthandler` writes its stack when a signal ends it."""
    return os.path.join(folder, f"died-{rank}")


def told(status: int | None, dump: str) -> str:
    """What ended a process, and where it was then: "at cell line 3 `…` (its process ended by SIGSEGV …)".

    `status` is that of `multiprocessing`: -11 for signal 11, None if nobody knows; `dump` is what it wrote last.

    >>> told(3, "")
    '(its process ended with status 3)'
    """
    own = next((frame for frame in reversed(parse_stack(dump)) if frame.is_own), None)
    place = f"at {own.place}{f' `{own.source}`' if own.source else ''} " if own is not None else ""
    return f"{place}({_cause(status)})"


def _cause(status: int | None) -> str:
    if status is None:
        return "its process ended"
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        return f"its process ended by signal {-status}"
    return f"its process ended by {name}{f': {_MEANS[name]}' if name in _MEANS else ''}"
