"""The ring: every rank sends to the next and receives from the one before, one chunk at a time.

`chunks` are views of one tensor, chunk r belonging to rank r. Source: Patarasuk & Yuan 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from course_lib.comm.p2p import Port
from course_lib.comm.reductions import Combine


def reduce_scatter(chunks: Sequence[Tensor], port: Port, combine: Combine) -> None:
    """Leave the sum over all ranks of chunk r in rank r's `chunks[r]`; the other chunks are scratch.

    Cost: all chunks but chunk r sent, p - 1 steps.
    """
    r, p = port.rank, port.size
    inbox = port.rooms(chunks)
    # All receives start first, so that a message which arrives finds its place ready.
    arriving = [port.irecv(inbox[(r - step - 1) % p], (r - 1) % p) for step in range(1, p)]
    for step in range(1, p):
        sending = port.isend(chunks[(r - step) % p], (r + 1) % p)
        arriving[step - 1].wait()
        mine = (r - step - 1) % p
        combine(chunks[mine], inbox[mine])
        sending.wait()


def all_gather(chunks: Sequence[Tensor], port: Port) -> None:
    """Fill all `chunks` on every rank; rank r begins with `chunks[r]`.

    Cost: all chunks but chunk r + 1 sent, p - 1 steps.
    """
    r, p = port.rank, port.size
    arriving = [port.irecv(chunks[(r - step - 1) % p], (r - 1) % p) for step in range(p - 1)]
    for step in range(p - 1):
        sending = port.isend(chunks[(r - step) % p], (r + 1) % p)
        arriving[step].wait()
        sending.wait()


def all_reduce(x: Tensor, port: Port, combine: Combine) -> None:
    """Sum flat `x` over all ranks, in place: reduce-scatter, then all-gather.

    Cost: 2 (p - 1)/p M bytes sent, 2 (p - 1) steps.
    """
    chunks = x.tensor_split(port.size)
    reduce_scatter(chunks, port, combine)
    all_gather(chunks, port)
