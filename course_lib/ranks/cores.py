"""How ranks share the machine's cores."""

from __future__ import annotations

import os
from contextlib import suppress


def let_others_finish() -> None:
    """Let this process, and all that it starts, interrupt no other one that computes, where the system can be told so.

    Where ranks have less than a core each, one that is interrupted while it holds the lock of a connection lets gloo's
    thread beside it spin for as long: a message then takes milliseconds instead of a tenth of one.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
