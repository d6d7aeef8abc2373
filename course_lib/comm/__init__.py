"""Collectives from scratch on send and receive, their native twins, and the ledger of what they sent.

The names below load torch when they are first used; `course_lib.comm.ledger` needs none, so that a notebook can
read a ledger without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_lib.comm.clock import EmulatedClock, compute, emulated, span
    from course_lib.comm.collectives import (
        all_gather,
        all_reduce,
        all_reduce_,
        all_to_all,
        barrier,
        broadcast,
        gather,
        iall_reduce_,
        reduce,
        reduce_scatter,
        scatter,
    )
    from course_lib.comm.opening import ALGORITHMS
    from course_lib.comm.p2p import Handle, irecv, isend, recv, send
    from course_lib.comm.sweep import sweep_all_reduce
    from course_lib.comm.switches import settings

__all__ = [
    "ALGORITHMS",
    "EmulatedClock",
    "Handle",
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "barrier",
    "broadcast",
    "compute",
    "emulated",
    "gather",
    "iall_reduce_",
    "irecv",
    "isend",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "settings",
    "span",
    "sweep_all_reduce",
]
_MODULES = ("collectives", "p2p", "clock", "opening", "switches", "sweep")


def __getattr__(name: str) -> Any:
    """Find a name of `__all__` in the module that defines it."""
    if name in __all__:
        for module in _MODULES:
            found = getattr(import_module(f"{__name__}.{module}"), name, None)
            if found is not None:
                globals()[name] = found  # asked for once
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
