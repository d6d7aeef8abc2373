"""The ring: every rank sends to the next and receives from the one before, one chunk at a time.

`chunks` are views of one tensor, chunk r belonging to rank r. Source: Patarasuk & Yuan 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.comm.p2p import Port
from course_lib.comm.reductions import Combine


def reduce_scatter(chunks: Sequence[Tensor], port: Port, combine: Combine) -> None:
    """Leave the sum over all ranks of chunk r in rank r's `chunks[r]`; the other chunks are scratch.

    Cost: M - chunk r bytes sent, p - 1 steps.
    """
    r, p = port.rank, port.size
    inbox = torch.empty_like(chunks[0])  # chunk 0 is the largest
    for step in range(1, p):
        outgoing, mine = chunks[(r - step) % p], chunks[(r - step - 1) % p]
        arrived = inbox[: len(mine)]
        port.exchange(outgoing, (r + 1) % p, arrived, (r - 1) % p)
        combine(mine, arrived)


def all_gather(chunks: Sequence[Tensor], port: Port) -> None:
    """Fill all `chunks` on every rank; rank r begins with `chunks[r]`.

    Cost: M - chunk r+1 bytes sent, p - 1 steps.
    """
    r, p = port.rank, port.size
    for step in range(p - 1):
        outgoing, incoming = chunks[(r - step) % p], chunks[(r - step - 1) % p]
        port.exchange(outgoing, (r + 1) % p, incoming, (r - 1) % p)


def all_reduce(x: Tensor, port: Port, combine: Combine) -> None:
    """Sum flat `x` over all ranks, in place: reduce-scatter, then all-gather.

    Cost: 2 (p - 1)/p M bytes sent, 2 (p - 1) steps.
    """
    chunks = x.tensor_split(port.size)
    reduce_scatter(chunks, port, combine)
    all_gather(chunks, port)
