"""One hop on a ring: every rank sends to the next one and receives from the one before, while it goes on computing."""

from __future__ import annotations

from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.comm.opening import next_call
from course_lib.comm.p2p import Port, Work
from course_lib.comm.switches import active


def pass_on(x: Tensor, into: Tensor, *, operation: str, group: ProcessGroup | None = None) -> list[Work]:
    """Begin to send `x` to the next rank, and to receive `into` from the one before; wait for all that it returns.

    Both are contiguous; `into` has the size of what the rank before sends. In the ledger the hop is an `operation` of
    algorithm "ring". Cost: the bytes of `x`, one step.
    """
    members, call = next_call(operation, group)
    port = Port(members, operation=operation, algorithm="ring", call=call)
    after, before = (port.rank + 1) % port.size, (port.rank - 1) % port.size
    if active.guard and x.numel() and into.numel():
        return [port.irecv_labelled(into, before), port.isend_labelled(x, after)]
    return [port.irecv(into, before), port.isend(x, after)]
