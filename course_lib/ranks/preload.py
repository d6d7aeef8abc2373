"""What the fork server imports, so that the ranks that it forks need not. It alone imports this module.

The rank's own modules come at once. A process's first optimizer imports 800 modules more, those of torch.compile,
which takes a second of computing and 75 MB: they come when the first ranks have long been forked, so that nobody
waits for them, and all ranks that are forked later share them.

No thread: a fork in the middle of an import would leave locked modules behind. So an alarm clock drives it, which also
looks whether the notebook still lives: the pipe that tells the server may be held open by a process that the notebook
has forked.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import signal
from contextlib import suppress
from multiprocessing import forkserver

import torch

from course_lib.ranks import worker as worker
from course_lib.ranks.server import FOLDER

_TICK_S = 1.0
_IDLE_AFTER_TICKS = 5
_SERVER, _NOTEBOOK = os.getpid(), os.getppid()
_ticks = itertools.count(1)


def _tick(*_: object) -> None:
    if os.getpid() != _SERVER:
        return
    if os.getppid() != _NOTEBOOK:
        _leave()
    if next(_ticks) == _IDLE_AFTER_TICKS:
        torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # what a rank would do first, done once for all


def _leave() -> None:
    """Remove what the notebook can no longer remove itself, the ranks' folder and the server's address, and end.

    At once, without the interpreter's own end: ranks that are stopped or in C code live until then.
    """
    if os.getpid() == _SERVER:
        shutil.rmtree(os.environ[FOLDER], ignore_errors=True)
        address = getattr(forkserver._forkserver, "_forkserver_address", "")
        with suppress(OSError):
            os.unlink(address)
            os.rmdir(os.path.dirname(address))
        os._exit(0)


atexit.register(_leave)
signal.signal(signal.SIGALRM, _tick)
signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
