"""What workers send that agree on less than the whole gradient, or not in every step, or not with everybody.

p ranks. Messages that add up meet in an all-reduce, others are gathered:

    gather_time           a message m of each rank, to all: (p - 1) m bytes sent in p - 1 steps of a ring
    sum_time              numbers that all ranks sum: an all-reduce
    double_squeeze_time   p stretches: a message of each stretch to its server, and one from each server to all
    power_sgd_time        left factors and vectors are summed, then right factors
    gossip_time           the whole model to each neighbour, one after the other
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from course_lib.config import ModelConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.lossy_messages import qsgd_bytes, rand_k_bytes, sign_bytes, top_k_bytes
from course_lib.costs.comm.traffic import CommTime, Step
from course_lib.costs.comm.uneven import all_to_all_uneven
from course_lib.costs.model.parameters import Weight, layer_weights, outer_weights
from course_lib.errors import four_parts
from course_lib.hardware import Link
from course_lib.split import split_sizes

_Shape = tuple[int, ...]


def gather_time(message_bytes: int, *, ranks: int) -> CommTime:
    """One message of each rank, all of the same size, to all ranks, round the ring."""
    return comm_time("all_gather", "ring", world_size=ranks, length=ranks, itemsize=message_bytes)


def sum_time(numbers: int, *, itemsize: int, ranks: int, algorithm: str = "halving_doubling") -> CommTime:
    """Numbers that all ranks sum; halving and doubling sends what a ring sends, in 2 log2 p steps."""
    return comm_time("all_reduce", algorithm, world_size=ranks, length=numbers, itemsize=itemsize)


def double_squeeze_time(stretches: Sequence[int]) -> CommTime:
    """`stretches[r]` are the bytes of a compressed message of the stretch that rank r serves.

    Rank r sends the others' stretches to their servers, which is all but its own. Then each server sends its answer,
    as long as what it was asked, to all others.
    """
    ranks = len(stretches)
    asked, answered = [list(stretches)] * ranks, [[nbytes] * ranks for nbytes in stretches]
    return all_to_all_uneven(asked) + all_to_all_uneven(answered)


def power_sgd_time(
    shapes: Iterable[_Shape], rank: int, *, itemsize: int, ranks: int, algorithm: str = "halving_doubling"
) -> CommTime:
    """Two all-reduces of a step: of matrix (a, b) there are a r numbers in the first and b r in the second.

    r is `rank`, or the matrix's smaller side. Whatever is no matrix is summed as it is, in the first.
    """
    left = right = 0
    for shape in shapes:
        columns = min(rank, *shape) if len(shape) == 2 else 0
        left += columns * shape[0] if columns else prod(shape)
        right += columns * shape[1] if columns else 0
    sums = [sum_time(n, itemsize=itemsize, ranks=ranks, algorithm=algorithm) for n in (left, right) if n]
    return sum(sums, CommTime.nothing(ranks))


def gossip_time(degrees: Sequence[int], nbytes: int) -> CommTime:
    """`degrees[r]` is to how many ranks r sends all of `nbytes`, and from how many it receives as much."""
    moved = tuple(degree * nbytes for degree in degrees)
    return CommTime(
        sent_bytes=moved, received_bytes=moved, messages=tuple(degrees), path=(Step(nbytes),) * max(degrees)
    )


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """One row of the table: how workers agree, and after how many steps they do so again."""

    method: str
    cost: CommTime
    every: int = 1

    @property
    def bytes_a_step(self) -> float:
        """What the rank that sends most sends, per step."""
        return max(self.cost.sent_bytes) / self.every

    def seconds_a_step(self, link: Link) -> float:
        """If nothing is computed meanwhile."""
        return self.cost.time_s(link) / self.every


def one_synchronisation(config: ModelConfig, *, ranks: int, itemsize: int = 2) -> list[Synchronisation]:
    """What each method sends of a model's gradient, or of the model, whose numbers have `itemsize` bytes.

    Raises: ValueError unless the ranks are a power of two, as the exponential graphs need.
    """
    if ranks < 2 or ranks & (ranks - 1):
        rule = "in an exponential graph distances double until they have gone round"
        raise ValueError(four_parts("one_synchronisation", f"ranks={ranks}", rule, "choose a power of two, 2 or more"))
    shapes = list(_shapes(config))
    numbers = sum(map(prod, shapes))
    return [
        *_averages(numbers, ranks, itemsize),
        *_compressed(numbers, ranks, itemsize),
        *(
            Synchronisation(
                method=f"PowerSGD, rank {rank}", cost=power_sgd_time(shapes, rank, itemsize=itemsize, ranks=ranks)
            )
            for rank in (1, 4, 32)
        ),
    ]


def _averages(numbers: int, ranks: int, itemsize: int) -> Iterator[Synchronisation]:
    """Of the whole gradient with all, of the model with some, or not in every step."""
    for algorithm in ("ring", "halving_doubling"):
        cost = sum_time(numbers, itemsize=itemsize, ranks=ranks, algorithm=algorithm)
        yield Synchronisation(method=f"all-reduce, {algorithm.replace('_', '-')}", cost=cost)
    nbytes = numbers * itemsize
    degrees = {"ring": 2, "one-peer exponential": 1, "static exponential": ranks.bit_length() - 1}
    for topology, degree in degrees.items():
        yield Synchronisation(method=f"gossip, {topology}", cost=gossip_time([degree] * ranks, nbytes))
    for every in (10, 50, 500):
        yield Synchronisation(
            method=f"local, every {every}", cost=sum_time(numbers, itemsize=itemsize, ranks=ranks), every=every
        )


def _compressed(numbers: int, ranks: int, itemsize: int) -> Iterator[Synchronisation]:
    """By a compressor, gathered, summed, or through servers."""
    stretches = split_sizes(numbers, ranks)
    gathered = {
        "top-1 %, all-gather": top_k_bytes(numbers, 0.01, itemsize),
        "top-0.1 %, all-gather": top_k_bytes(numbers, 0.001, itemsize),
        "sign, all-gather": sign_bytes(numbers, itemsize),
        "QSGD in 4 bits, all-gather": qsgd_bytes(numbers, 7, 512, itemsize),
    }
    for method, message_bytes in gathered.items():
        yield Synchronisation(method=method, cost=gather_time(message_bytes, ranks=ranks))
    served = {
        "top-1 %, Double-Squeeze": [top_k_bytes(size, 0.01, itemsize) for size in stretches],
        "sign, Double-Squeeze": [sign_bytes(size, itemsize) for size in stretches],
    }
    for method, messages in served.items():
        yield Synchronisation(method=method, cost=double_squeeze_time(messages))
    drawn = rand_k_bytes(numbers, 0.01, itemsize) // itemsize
    yield Synchronisation(method="rand-1 %, all-reduce", cost=sum_time(drawn, itemsize=itemsize, ranks=ranks))


def _shapes(config: ModelConfig) -> Iterator[_Shape]:
    """Of each tensor of the model, as often as there are of it."""
    layers: list[tuple[int, Sequence[Weight]]] = [(n, layer_weights(kind)) for n, kind in config.layer_kinds]
    for count, weights in [(1, outer_weights(config)), *layers]:
        for weight in weights:
            yield from [weight.shape] * (count * weight.copies)
