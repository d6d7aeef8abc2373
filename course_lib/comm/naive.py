"""The obvious way: one rank serves all others in turn, or everybody writes to everybody."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from course_lib.comm.p2p import Port
from course_lib.comm.reductions import Combine


def broadcast(x: Tensor, root: int, port: Port) -> None:
    """Copy the root's `x` to every rank. Cost: the root sends (p - 1) M, one message after the other."""
    if port.rank == root:
        for peer in _others(root, port.size):
            port.send(x, peer)
    else:
        port.recv(x, root)


def reduce(x: Tensor, root: int, port: Port, combine: Combine) -> None:
    """Sum every rank's `x` into the root's. Cost: the root receives (p - 1) M, one after the other."""
    if port.rank == root:
        inbox = port.room(x)
        for peer in _others(root, port.size):
            port.recv(inbox, peer)
            combine(x, inbox)
    else:
        port.send(x, root)


def all_reduce(x: Tensor, port: Port, combine: Combine) -> None:
    """Sum `x` on rank 0, then send the sum to everybody. Cost: rank 0 sends (p - 1) M, the others M."""
    reduce(x, 0, port, combine)
    broadcast(x, 0, port)


def scatter(chunks: Sequence[Tensor], root: int, port: Port) -> None:
    """Send the root's chunk j to rank j. Cost: the root sends M minus its own chunk."""
    if port.rank == root:
        for peer in _others(root, port.size):
            port.send(chunks[peer], peer)
    else:
        port.recv(chunks[port.rank], root)


def gather(chunks: Sequence[Tensor], root: int, port: Port) -> None:
    """Collect chunk j from rank j on the root. Cost: every other rank sends its chunk."""
    if port.rank == root:
        for peer in _others(root, port.size):
            port.recv(chunks[peer], peer)
    else:
        port.send(chunks[port.rank], root)


def all_gather(chunks: Sequence[Tensor], port: Port) -> None:
    """Send one's own chunk to every other rank. Cost: (p - 1) chunks sent, p - 1 steps."""
    r, p = port.rank, port.size
    for step in range(1, p):
        to, source = (r + step) % p, (r - step) % p
        port.exchange(chunks[r], to, chunks[source], source)


def reduce_scatter(chunks: Sequence[Tensor], port: Port, combine: Combine) -> None:
    """Send chunk j straight to rank j, and sum what comes for chunk r. Cost: M - chunk r sent, p - 1 steps."""
    r, p = port.rank, port.size
    inbox = port.room(chunks[r])
    for step in range(1, p):
        to, source = (r + step) % p, (r - step) % p
        port.exchange(chunks[to], to, inbox, source)
        combine(chunks[r], inbox)


def _others(rank: int, size: int) -> list[int]:
    return [peer for peer in range(size) if peer != rank]
