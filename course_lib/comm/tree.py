"""The binomial tree: whoever has the data helps to spread it, so the number of holders doubles in each step.

v = (rank - root) mod p is a rank's place as seen from the root. Its parent is v - lowbit(v), where lowbit is the
lowest set bit; its children are v + d for the powers of two d < lowbit(v).
Source: Thakur, Rabenseifner & Gropp 2005, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.comm.p2p import Port
from course_lib.comm.reductions import Combine


def broadcast(x: Tensor, root: int, port: Port) -> None:
    """Copy the root's `x` to every rank. Cost: M to each child, ceil(log2 p) steps."""
    parent, children = _neighbours(port.rank, port.size, root)
    if parent is not None:
        port.recv(x, parent)
    for child in children:
        port.send(x, child)


def reduce(x: Tensor, root: int, port: Port, combine: Combine) -> None:
    """Sum every rank's `x` into the root's: a broadcast read backwards. Cost: M to the parent."""
    parent, children = _neighbours(port.rank, port.size, root)
    inbox = port.room(x)
    for child in reversed(children):
        port.recv(inbox, child)
        combine(x, inbox)
    if parent is not None:
        port.send(x, parent)


def all_reduce(x: Tensor, port: Port, combine: Combine) -> None:
    """Sum `x` up the tree to rank 0 and send the sum down again. Cost: 2 ceil(log2 p) steps of M bytes."""
    reduce(x, 0, port, combine)
    broadcast(x, 0, port)


def scatter(chunks: Sequence[Tensor], root: int, port: Port) -> None:
    """Send the root's chunk j to rank j; an edge carries the chunks of all ranks below it, as one message."""
    parent, children = _neighbours(port.rank, port.size, root)
    if parent is not None:
        _unpack(port, parent, [chunks[rank] for rank in below(port.rank, port.size, root)])
    for child in children:
        port.send(torch.cat([chunks[rank] for rank in below(child, port.size, root)]), child)


def gather(chunks: Sequence[Tensor], root: int, port: Port) -> None:
    """Collect chunk j from rank j on the root: a scatter read backwards."""
    parent, children = _neighbours(port.rank, port.size, root)
    for child in reversed(children):
        _unpack(port, child, [chunks[rank] for rank in below(child, port.size, root)])
    if parent is not None:
        port.send(torch.cat([chunks[rank] for rank in below(port.rank, port.size, root)]), parent)


def _neighbours(rank: int, p: int, root: int) -> tuple[int | None, list[int]]:
    """Parent (None for the root) and children, those with the largest subtree first.

    >>> _neighbours(0, 8, root=0), _neighbours(4, 8, root=0), _neighbours(7, 8, root=0)
    ((None, [4, 2, 1]), (0, [6, 5]), (6, []))
    """
    v = (rank - root) % p
    reach = _reach(v, p)
    distances = [1 << k for k in reversed(range(reach.bit_length() - 1))]
    parent = (v - reach + root) % p if v else None
    return parent, [(v + d + root) % p for d in distances if v + d < p]


def below(rank: int, p: int, root: int) -> list[int]:
    """The ranks of a subtree, its top first.

    >>> below(4, 8, root=0), below(4, 6, root=0)
    ([4, 5, 6, 7], [4, 5])
    """
    v = (rank - root) % p
    return [(u + root) % p for u in range(v, min(v + _reach(v, p), p))]


def _reach(v: int, p: int) -> int:
    """Places from v on that its subtree covers: the lowest set bit of v; all of them for the root."""
    return v & -v or 1 << (p - 1).bit_length()


def _unpack(port: Port, source: int, chunks: list[Tensor]) -> None:
    """Receive one message into several chunks."""
    lengths = [len(chunk) for chunk in chunks]
    message = chunks[0].new_empty(sum(lengths), *chunks[0].shape[1:])
    port.recv(message, source)
    for chunk, part in zip(chunks, message.split(lengths), strict=True):
        chunk.copy_(part)
