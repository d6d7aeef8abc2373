"""Tensor parallelism that computes while it sums: what hides behind what, and what is left exposed.

A block's output is a sum over ranks, and the next block reads it, so that computing and summing take turns. But the
rows of a batch need not wait for each other: cut in parts, one part's sum travels while another part is computed.

    waits for   the next block of a part starts when                                         as in
    own         this part's own sum has come: the parts are sequences of the batch            Domino's half-batches
    all         every part's has come: the parts are pieces of one product                    PyTorch's async TP

A block of C seconds and a sum of T, in n parts: in turn C + T; where it waits for all, max(C, T) + min(C, T)/n. In a
chain of blocks that wait for their own, max(C, T) each, and at the end the last part's sum, T/n. Each part pays its own
latency, and products of fewer rows are less efficient, which is not in here.
Source: Wang et al. 2024, Domino, section 3 (own); PyTorch, torch.distributed._symmetric_memory, and Wang et al. 2022,
    Overlap Communication with Dependent Computation via Decomposition, section 5 (all).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from course_lib.errors import four_parts


class OverlapSlot(NamedTuple):
    """One part of one block, computed or summed."""

    block: int
    part: int
    kind: Literal["compute", "sum"]
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class TensorOverlap:
    """A chain of blocks with their sums on two lanes, the GPU's and the wire's."""

    compute_s: float
    sum_s: float  # of the sums in one piece each, latency included
    slots: tuple[OverlapSlot, ...]

    @property
    def in_turn_s(self) -> float:
        """Seconds if each block waits for the sum before it."""
        return self.compute_s + self.sum_s

    @property
    def overlapped_s(self) -> float:
        """Seconds of the chain in parts."""
        return max((slot.end_s for slot in self.slots), default=0.0)

    @property
    def exposed_s(self) -> float:
        """Seconds in which the GPU waits for a sum."""
        return self.overlapped_s - self.compute_s

    @property
    def hidden_share(self) -> float:
        """Of the time that the sums take in turn, what is saved; below 0 where the parts' latencies cost more."""
        return 1 - self.exposed_s / self.sum_s if self.sum_s else 0.0


def tensor_overlap(
    compute_s: Sequence[float],
    sum_s: Sequence[float],
    *,
    parts: int = 2,
    latency_s: float = 0.0,
    waits_for: Literal["own", "all"] = "own",
) -> TensorOverlap:
    """Blocks one after the other, each in parts; `sum_s` is a block's sum by its bytes, and each part adds `latency_s`.

    A GPU computes one part at a time and the wire carries one sum at a time, both in the order of blocks and parts.
    Raises: ValueError for no parts, a negative time, or unequally many blocks and sums.
    """
    _check(compute_s, sum_s, parts, latency_s)
    slots: list[OverlapSlot] = []
    gpu = wire = 0.0  # free from then on
    came = [0.0] * parts  # each part's sum of the block before
    for block, (computed, summed) in enumerate(zip(compute_s, sum_s, strict=True)):
        ready = came if waits_for == "own" else [max(came)] * parts
        came = []
        for part in range(parts):
            start = max(gpu, ready[part])
            gpu = start + computed / parts
            slots.append(OverlapSlot(block, part, "compute", start, gpu))
            start = max(wire, gpu)
            wire = start + summed / parts + latency_s
            slots.append(OverlapSlot(block, part, "sum", start, wire))
            came.append(wire)
    total = sum(sum_s) + latency_s * len(sum_s)
    return TensorOverlap(compute_s=sum(compute_s), sum_s=total, slots=tuple(slots))


def _check(compute_s: Sequence[float], sum_s: Sequence[float], parts: int, latency_s: float) -> None:
    if len(compute_s) != len(sum_s):
        values = f"{len(compute_s)} blocks, {len(sum_s)} sums"
        raise ValueError(four_parts("tensor_overlap", values, "each block ends in a sum", "give a time for each"))
    if parts < 1:
        raise ValueError(four_parts("tensor_overlap", f"parts={parts}", "a batch has parts", "give parts >= 1"))
    if not min(*compute_s, *sum_s, latency_s, 0.0) >= 0:
        values = f"a time of {min(*compute_s, *sum_s, latency_s)} s"
        raise ValueError(four_parts("tensor_overlap", values, "times are not negative", "give seconds >= 0"))
