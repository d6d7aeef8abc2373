"""What the fork server imports, so that the ranks that it forks need not. It alone imports this module.

The rank's own modules come at once. A process's first optimizer imports 800 modules more, those of torch.compile,
which takes a second of computing and 75 MB: they come when the first ranks have long been forked, so that nobody
waits for them, and all ranks that are forked later share them. In the server's main thread: a fork in the middle of
an import would leave locked modules behind.

What was imported stays, so garbage collection passes over it: on a rank it would take a tenth of a second each time,
and write into memory that all ranks share.
"""

from __future__ import annotations

import atexit
import gc

import torch

from course_lib.ranks import tether
from course_lib.ranks import worker as worker

_IDLE_AFTER_TICKS = 2


def _make_optimizer() -> None:
    """What a rank would do first, done once for all."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    gc.freeze()


gc.freeze()
atexit.register(tether.leave)  # now, to come before what torch has to do at the end
tether.after_ticks(_IDLE_AFTER_TICKS, _make_optimizer)
