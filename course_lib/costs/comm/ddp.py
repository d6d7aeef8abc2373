"""Distributed data parallelism by formula: its buckets, what it sends, and how long a step takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import add

from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime
from course_lib.errors import four_parts
from course_lib.hardware import Link, Wires
from course_lib.units import MiB

BUCKET_BYTES = 25 * MiB
_NUMBER_BYTES = 8  # of a parameter's place in the order of a static graph


def fill_buckets(lengths: Iterable[int], *, bucket_bytes: int = BUCKET_BYTES, itemsize: int = 4) -> list[list[int]]:
    """Deal tensors of `lengths` elements out in their order; a bucket is full once it holds `bucket_bytes`.

    >>> fill_buckets([3, 2, 4], bucket_bytes=16, itemsize=4)
    [[3, 2], [4]]
    """
    buckets: list[list[int]] = []
    full = True
    for length in lengths:
        if full:
            buckets.append([])
        buckets[-1].append(length)
        full = sum(buckets[-1]) * itemsize >= bucket_bytes
    return buckets


def ddp_wrapping(state: Iterable[tuple[Sequence[int], int]], *, world_size: int) -> CommTime:
    """What copying the first rank's model to the others sends, by a binomial tree.

    `state` holds, for each dtype, the lengths of all parameters and buffers in their order, and the dtype's bytes.
    """
    return _total(
        comm_time("broadcast", "tree", world_size=world_size, length=sum(bucket), itemsize=itemsize)
        for lengths, itemsize in state
        for bucket in fill_buckets(lengths, itemsize=itemsize)
    )


def ddp_step(
    lengths: Sequence[int],
    *,
    world_size: int,
    bucket_bytes: int = BUCKET_BYTES,
    itemsize: int = 4,
    algorithm: str = "ring",
    find_unused_parameters: bool = False,
) -> CommTime:
    """What one step sends: an all-reduce for each bucket, however many micro-batches it accumulates.

    `lengths` are those of the trained parameters in the model's order, which buckets follow from the last to the
    first. Buffers come on top, as `ddp_wrapping` of them alone. Finding unused parameters takes another all-reduce, of
    a byte for each parameter.
    """
    buckets = fill_buckets(lengths[::-1], bucket_bytes=bucket_bytes, itemsize=itemsize)
    total = _total(_all_reduce(sum(bucket), world_size, itemsize, algorithm) for bucket in buckets)
    if find_unused_parameters:
        total += _all_reduce(len(lengths), world_size, 1, algorithm)
    return total


def ddp_settling(parameters: int, *, world_size: int, algorithm: str = "ring") -> CommTime:
    """What the first step of a static graph sends besides: which parameters are used, and the first rank's order."""
    order = comm_time("broadcast", "tree", world_size=world_size, length=parameters, itemsize=_NUMBER_BYTES)
    return _all_reduce(parameters, world_size, 1, algorithm) + order


@dataclass(frozen=True, kw_only=True)
class DdpTime:
    """One step's two streams: computing, and the all-reduces of its buckets.

    Model: a bucket's all-reduce starts when its last gradient is complete and the bucket before has passed.
    Source: Li et al. 2020, PyTorch Distributed, section 3.2.3.
    """

    compute_s: float
    ready_s: tuple[float, ...]  # by bucket: when its gradients are complete
    all_reduce_s: tuple[float, ...]  # by bucket

    @property
    def in_turn_s(self) -> float:
        """Seconds of a step that communicates only after it has computed."""
        return self.compute_s + sum(self.all_reduce_s)

    @property
    def overlapped_s(self) -> float:
        """Seconds of a step that communicates while it computes."""
        ends = map(add, self.starts_s(), self.all_reduce_s)
        return max(self.compute_s, *ends)

    def starts_s(self, *, overlap: bool = True) -> tuple[float, ...]:
        """By bucket: when its all-reduce starts."""
        starts, free = [], 0.0 if overlap else self.compute_s
        for ready, duration in zip(self.ready_s, self.all_reduce_s, strict=True):
            starts.append(max(free, ready))
            free = starts[-1] + duration
        return tuple(starts)

    def efficiency(self, *, overlap: bool = True) -> float:
        """Scaling efficiency at equal batches per rank: one rank's time for a step over this one."""
        return self.compute_s / (self.overlapped_s if overlap else self.in_turn_s)


def ddp_time(
    layers: Sequence[Sequence[int]],
    *,
    forward_s: float | Sequence[float],
    backward_s: float | Sequence[float],
    world_size: int,
    inside: Link | Wires,
    between: Link | None = None,
    node_size: int | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    itemsize: int = 4,
    algorithm: str = "ring",
) -> DdpTime:
    """The streams of one step; `layers` holds the lengths of each layer's parameters.

    A layer's gradients are complete together, at the end of its backward. One number for a time is each layer's.
    `inside` and `between` are links, a card for each message; or `inside` are a cluster's wires, with all its cards.
    Raises: ValueError unless there are layers, and a time for each.
    """
    forward = _of_each("forward_s", forward_s, len(layers))
    backward = _of_each("backward_s", backward_s, len(layers))
    done = list(accumulate(backward[::-1], initial=sum(forward)))[1:]  # of the last layer first
    ready = [end for end, lengths in zip(done, layers[::-1], strict=True) for _ in lengths]
    buckets = fill_buckets(
        (length for lengths in layers[::-1] for length in lengths[::-1]), bucket_bytes=bucket_bytes, itemsize=itemsize
    )
    last = accumulate(map(len, buckets))
    if isinstance(inside, Wires):
        node_size = min(world_size, inside.domain)
    costs = [_all_reduce(sum(bucket), world_size, itemsize, algorithm, node_size) for bucket in buckets]
    return DdpTime(
        compute_s=done[-1],
        ready_s=tuple(ready[count - 1] for count in last),
        all_reduce_s=tuple(cost.time_s(inside, between) for cost in costs),
    )


def _all_reduce(length: int, world_size: int, itemsize: int, algorithm: str, node_size: int | None = None) -> CommTime:
    return comm_time(
        "all_reduce", algorithm, world_size=world_size, length=length, itemsize=itemsize, node_size=node_size
    )


def _total(costs: Iterable[CommTime]) -> CommTime:
    return reduce(add, costs)


def _of_each(name: str, times: float | Sequence[float], layers: int) -> list[float]:
    each = [times] * layers if isinstance(times, float | int) else list(times)
    if not layers or len(each) != layers:
        values = f"{len(each)} times in {name}, {layers} layers"
        raise ValueError(four_parts("ddp_time", values, "each layer has a time", "give one number, or one for each"))
    return each
