"""All-reduce among pairs: in each step every rank has a partner, and the distance to it doubles or halves.

With q the largest power of two up to p, the p - q ranks beyond q hand their tensor to a partner first and get the
result back at the end ("fold-in"). Sources: Thakur, Rabenseifner & Gropp 2005, section 4; Rabenseifner 2004.
"""

from __future__ import annotations

from torch import Tensor

from course_lib.comm.p2p import Port
from course_lib.comm.reductions import Combine


def recursive_doubling(x: Tensor, port: Port, combine: Combine) -> None:
    """Exchange the whole tensor at distance 1, 2, 4, ...: few steps, many bytes.

    Cost: M log2 p bytes sent, log2 p steps.
    """
    q, inbox = _power_of_two(port.size), port.room(x)
    if _fold_in(x, inbox, q, port, combine):
        for distance in _distances(q):
            partner = port.rank ^ distance
            port.exchange(x, partner, inbox, partner)
            combine(x, inbox)
    _fold_out(x, q, port)


def halving_doubling(x: Tensor, port: Port, combine: Combine) -> None:
    """Reduce-scatter by halving the part that is still mine, then all-gather by doubling it again.

    Cost: 2 (p - 1)/p M bytes sent as in the ring, but in 2 log2 p steps.
    """
    q, inbox = _power_of_two(port.size), port.room(x)
    if _fold_in(x, inbox, q, port, combine):
        chunks = x.tensor_split(q)
        for distance in reversed(_distances(q)):
            partner = port.rank ^ distance
            mine, theirs = block(x, chunks, port.rank, distance), block(x, chunks, partner, distance)
            port.exchange(theirs, partner, inbox[: len(mine)], partner)
            combine(mine, inbox[: len(mine)])
        for distance in _distances(q):
            partner = port.rank ^ distance
            mine, theirs = block(x, chunks, port.rank, distance), block(x, chunks, partner, distance)
            port.exchange(mine, partner, theirs, partner)
    _fold_out(x, q, port)


def _power_of_two(p: int) -> int:
    """The largest power of two up to p."""
    return 1 << (p.bit_length() - 1)


def _distances(q: int) -> list[int]:
    """1, 2, 4, ..., q / 2."""
    return [1 << k for k in range(q.bit_length() - 1)]


def block(x: Tensor, chunks: tuple[Tensor, ...], rank: int, size: int) -> Tensor:
    """The aligned block of `size` neighbouring chunks that holds chunk `rank`, as a view of `x`."""
    first = rank - rank % size
    start = sum(len(chunk) for chunk in chunks[:first])
    return x[start : start + sum(len(chunk) for chunk in chunks[first : first + size])]


def _fold_in(x: Tensor, inbox: Tensor, q: int, port: Port, combine: Combine) -> bool:
    """Rank q + i hands its tensor to rank i. True for the q ranks that go on."""
    if port.rank >= q:
        port.send(x, port.rank - q)
    elif port.rank + q < port.size:
        port.recv(inbox, port.rank + q)
        combine(x, inbox)
    return port.rank < q


def _fold_out(x: Tensor, q: int, port: Port) -> None:
    """Rank q + i gets the result from rank i."""
    if port.rank >= q:
        port.recv(x, port.rank - q)
    elif port.rank + q < port.size:
        port.send(x, port.rank + q)
