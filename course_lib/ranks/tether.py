"""The fork server ends with its notebook and leaves nothing behind. The server alone imports this module, first of all.

What it imports next makes almost no garbage, and looking for it would take a quarter of that time: `preload`, its last
import, lets the collection begin.

A signal that ends the notebook's process group, as Jupyter sends one, does not reach it: it is in a group of its own.
Once a second it looks whether the notebook still lives, for the pipe that should tell may be held open by a process
that the notebook has forked. An alarm clock and no thread: a fork would find a thread's locks taken for ever.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from contextlib import suppress
from multiprocessing import forkserver

from course_lib.ranks.server import FOLDER

_TICK_S = 1.0
_SERVER, _NOTEBOOK = os.getpid(), os.getppid()


def _tick(*_: object) -> None:
    if os.getpid() != _SERVER:
        return
    if os.getppid() != _NOTEBOOK:
        leave()


def leave() -> None:
    """Remove what the notebook can no longer remove itself, the ranks' folder and the server's address, and end.

    At once, without the interpreter's own end: ranks that are stopped or in C code live until then.
    """
    if os.getpid() == _SERVER:
        _end_what_ranks_started()
        shutil.rmtree(os.environ[FOLDER], ignore_errors=True)
        address = getattr(forkserver._forkserver, "_forkserver_address", None) or ""  # none yet while it imports
        with suppress(OSError):
            os.unlink(address)
            os.rmdir(os.path.dirname(address))
        os._exit(0)


def _end_what_ranks_started() -> None:
    """End every process that comes from here, whatever session it made for itself: each has the folder's name in the
    environment that it began with. Linux alone shows it."""
    mark = f"{FOLDER}={os.environ[FOLDER]}".encode()
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if entry.isdecimal() and int(entry) != _SERVER:
            with suppress(OSError):
                with open(f"/proc/{entry}/environ", "rb") as file:
                    marked = mark in file.read().split(b"\0")
                if marked:
                    os.kill(int(entry), signal.SIGKILL)


gc.disable()
os.setpgid(0, 0)
signal.signal(signal.SIGALRM, _tick)
signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
