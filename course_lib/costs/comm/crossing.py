"""Where two ways of one all-reduce take equally long: below that size one is faster, above it the other."""

from __future__ import annotations

from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime
from course_lib.hardware import Link


def crossing_bytes(one: str, other: str, *, world_size: int, link: Link) -> float | None:
    """Bytes of the whole tensor at which two all-reduce algorithms take equally long; None if they never do.

    In the alpha-beta model each is a straight line over the size, a start plus a price per byte, if all chunks are
    equally long; so two lines meet once or not at all. Raises: ValueError for an unknown algorithm.
    """
    (starts, per_byte), (other_starts, other_per_byte) = (_line(name, world_size) for name in (one, other))
    if per_byte == other_per_byte:
        return None
    steps_per_byte = (starts - other_starts) / (other_per_byte - per_byte)
    nbytes = steps_per_byte * link.alpha_s / link.beta_s_per_byte
    return nbytes if nbytes > 0 else None


def _line(algorithm: str, world_size: int) -> tuple[int, float]:
    """Starts, and bytes that pass one after the other for each byte of the tensor."""
    nbytes = world_size * 2 ** world_size.bit_length()  # the ranks divide it, and so does the power of two below them
    cost: CommTime = comm_time("all_reduce", algorithm, world_size=world_size, length=nbytes, itemsize=1)
    return cost.steps, cost.critical_bytes / nbytes
