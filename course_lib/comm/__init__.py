"""Collectives from scratch on send and receive, their native twins, and the ledger of what they sent.

The names below load torch when they are first used; `course_lib.comm.ledger` needs none, so that a notebook can
read a ledger without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.comm.around import pass_on
    from course_lib.comm.clock import EmulatedClock, compute, emulated, span
    from course_lib.comm.collectives import (
        all_gather,
        all_gather_,
        all_reduce,
        all_reduce_,
        all_to_all,
        barrier,
        broadcast,
        gather,
        reduce,
        reduce_scatter,
        reduce_scatter_,
        scatter,
    )
    from course_lib.comm.opening import ALGORITHMS
    from course_lib.comm.p2p import Work, irecv, isend, recv, send
    from course_lib.comm.sweep import sweep_all_reduce
    from course_lib.comm.switches import settings
    from course_lib.comm.uneven import all_to_all_uneven
else:
    __getattr__, __dir__ = listed_names(__name__)
