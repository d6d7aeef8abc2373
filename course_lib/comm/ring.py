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
    left, right = (r - 1) % p, (r + 1) % p
    inbox = port.rooms(chunks)
    arriving = []
    # All receives start first, so that a message which arrives finds its place ready.
    for step in range(1, p):
        coming = (r - step - 1) % p
        arriving.append(port.irecv(inbox[coming], left))
    for step in range(1, p):
        # The left neighbour sends what this formula says for its rank, r - 1.
        going, coming = (r - step) % p, (r - step - 1) % p
        sending = port.isend(chunks[going], right)
        arriving[step - 1].wait()
        combine(chunks[coming], inbox[coming])
        sending.wait()


def all_gather(chunks: Sequence[Tensor], port: Port) -> None:
    """Fill all `chunks` on every rank; rank r begins with `chunks[r]`.

    Cost: all chunks but chunk r + 1 sent, p - 1 steps.
    """
    r, p = port.rank, port.size
    left, right = (r - 1) % p, (r + 1) % p
    arriving = []
    for step in range(p - 1):
        coming = (r - step - 1) % p
        # No room beside: what arrives takes the place of a chunk that was scratch.
        arriving.append(port.irecv(chunks[coming], left))
    for step in range(p - 1):
        going = (r - step) % p
        sending = port.isend(chunks[going], right)
        arriving[step].wait()
        sending.wait()


def all_reduce(x: Tensor, port: Port, combine: Combine) -> None:
    """Sum flat `x` over all ranks, in place: reduce-scatter, then all-gather.

    Cost: 2 (p - 1)/p M bytes sent, 2 (p - 1) steps.
    """
    chunks = x.tensor_split(port.size)
    reduce_scatter(chunks, port, combine)
    all_gather(chunks, port)
