"""What a collective costs on the wires of a cluster."""

from __future__ import annotations

from course_lib.costs.comm.collectives import comm_time
from course_lib.hardware import Wires


def collective_s(
    operation: str, algorithm: str, *, nbytes: int, ranks: int, wires: Wires, stride: int = 1, root: int = 0
) -> float:
    """Seconds of one collective of `ranks`, each `stride` after the one before, while all other GPUs do the same.

    `nbytes` is the whole tensor: what an all-reduce has on every rank, what an all-gather ends with. Ranks fill domains
    in order, so that a row of ranks that are `stride` apart has domain/stride of them in each, and `stride` such rows
    share its cards.
    Model: of each step the largest message, with as many beside it as leave the domain: see `Wires`.
    Raises: ValueError as `comm_time`, as for a hierarchy of ranks that do not fill their domains.
    """
    together = min(ranks, max(1, wires.domain // stride))
    cost = comm_time(operation, algorithm, world_size=ranks, length=nbytes, itemsize=1, root=root, node_size=together)
    return cost.beside(min(stride, wires.domain)).time_s(wires.joining(together))
