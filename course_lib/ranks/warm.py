"""What a process does once, so that the ranks which it forks need not.

A process's first optimizer imports 800 modules, those of torch.compile, which takes a second of computing and 75 MB:
so one is made before the first rank is forked. The first one of a class, moreover, puts another `step` into that class:
made by an answer on a rank, it would look as if the answer had written it, and the ranks would be replaced.

What was imported stays, so garbage collection passes over it: on a rank it would take a tenth of a second each time,
and write into memory that all ranks share.

No rank interrupts another one that computes, where the system can be told so. Four ranks may share two cores: one that
is interrupted while it holds the lock of a connection lets gloo's thread beside it spin, and a message takes
milliseconds instead of a tenth of one.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress

import torch

from course_lib.ranks import worker as worker


def warm() -> None:
    """Prepare this process; its last import is made."""
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        kind([torch.zeros(1, requires_grad=True)])
    gc.freeze()
    gc.enable()
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
