"""What a collective moves: bytes and messages per rank, and the steps that its time is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import starmap
from math import ceil
from operator import add
from typing import NamedTuple

from course_lib.hardware import Link, Wires
from course_lib.split import split_sizes


class Step(NamedTuple):
    """One step on the critical path: its largest message, and how many messages leave a node or reach it."""

    nbytes: int
    leaving: int = 0  # of the node that most leave; 0: all stay in their nodes
    away: float = 1.0  # where some leave: the share of hops that do, on the way of a chunk that each step passes on
    to_one: bool = False  # a rank has one partner, so that between two GPUs without a switch other links lie idle

    @property
    def between(self) -> bool:
        """Whether any message leaves a node."""
        return self.leaving > 0


@dataclass(frozen=True, kw_only=True)
class CommTime:
    """Exact traffic of one collective, and its time in the alpha-beta model.

    Model: each rank sends one message and receives one at a time; steps follow each other, and a step takes
    as long as its largest message on its slowest link.
    Source: Hockney 1994 (alpha, beta); Thakur, Rabenseifner & Gropp 2005, section 3.
    """

    sent_bytes: tuple[int, ...]  # by rank
    received_bytes: tuple[int, ...]  # by rank
    messages: tuple[int, ...]  # sent, by rank
    path: tuple[Step, ...]

    @property
    def steps(self) -> int:
        """Number of steps, the factor of alpha."""
        return len(self.path)

    @property
    def critical_bytes(self) -> int:
        """Bytes that pass one after the other, the factor of beta."""
        return sum(step.nbytes for step in self.path)

    @property
    def total_bytes(self) -> int:
        """Bytes that all ranks send together."""
        return sum(self.sent_bytes)

    def time_s(self, inside: Link | Wires, between: Link | None = None) -> float:
        """Seconds over `inside` links; steps that leave a node use `between`, if given: a card for each message.

        On the `Wires` of a cluster, as NCCL uses them, all cards of a domain share what leaves it, and a rank need not
        wait until its message has arrived: a chunk on its way round a ring meets the network's latency only where it
        leaves a domain (NCCL 2.30, src/graph/tuning.cc, counts these hops apart, too).
        """
        if isinstance(inside, Wires):
            return sum(inside.message_s(step.nbytes, step.leaving, step.away, step.to_one) for step in self.path)
        return sum(((between or inside) if step.between else inside).time_s(step.nbytes) for step in self.path)

    def beside(self, groups: int) -> CommTime:
        """This, while so many groups of ranks do the same in the same nodes: as many times the messages leave these."""
        return replace(self, path=tuple(step._replace(leaving=groups * step.leaving) for step in self.path))

    @classmethod
    def nothing(cls, world_size: int) -> CommTime:
        """No message of any rank."""
        none = (0,) * world_size
        return cls(sent_bytes=none, received_bytes=none, messages=none, path=())

    def in_rows(self, places: Sequence[int]) -> CommTime:
        """The same in every row of a mesh at once, of all whose ranks rank r has place `places[r]` in its row."""
        return CommTime(
            sent_bytes=tuple(self.sent_bytes[place] for place in places),
            received_bytes=tuple(self.received_bytes[place] for place in places),
            messages=tuple(self.messages[place] for place in places),
            path=self.path,
        )

    def __add__(self, later: CommTime) -> CommTime:
        """This, then `later`, on the same ranks."""
        return CommTime(
            sent_bytes=_each(self.sent_bytes, later.sent_bytes),
            received_bytes=_each(self.received_bytes, later.received_bytes),
            messages=_each(self.messages, later.messages),
            path=self.path + later.path,
        )

    def __mul__(self, times: int) -> CommTime:
        """This, so many times."""
        return CommTime(
            sent_bytes=tuple(times * nbytes for nbytes in self.sent_bytes),
            received_bytes=tuple(times * nbytes for nbytes in self.received_bytes),
            messages=tuple(times * count for count in self.messages),
            path=self.path * times,
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One collective call, as the formulas see it."""

    world_size: int
    length: int
    itemsize: int
    root: int = 0
    node_size: int | None = None  # None: all ranks in one node

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.world_size)

    @property
    def nbytes(self) -> int:
        """M, the bytes of the whole tensor."""
        return self.length * self.itemsize

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Bytes of each rank's chunk of the tensor; the first is never smaller than another."""
        return tuple(size * self.itemsize for size in split_sizes(self.length, self.world_size))

    def step(self, nbytes: int, pairs: Iterable[tuple[int, int]]) -> Step:
        """A step in which the first rank of each of the `pairs` sends at most `nbytes` to the second."""
        node = self.node_size or self.world_size
        crossing = [(a // node, b // node) for a, b in pairs if a // node != b // node]
        out, into = Counter(a for a, _ in crossing), Counter(b for _, b in crossing)
        return Step(nbytes, max([*out.values(), *into.values()], default=0), to_one=True)

    def ring_path(self) -> tuple[Step, ...]:
        """p - 1 steps in which every rank sends to the next, and one of them the largest chunk.

        Each step passes on what came in the last, so a chunk leaves a node once on its way through it.
        """
        p, node = self.world_size, self.node_size or self.world_size
        return (self._rotation(1)._replace(away=ceil(p / node) / p),) * (p - 1)

    def pairwise_path(self) -> tuple[Step, ...]:
        """p - 1 steps: in step s every rank sends to the one s further on, and one of them the largest chunk."""
        return tuple(self._rotation(s) for s in range(1, self.world_size))

    def _rotation(self, s: int) -> Step:
        """Of a node's ranks the last s send out of it, or p - s where that is less, or as many as there are others."""
        p, node = self.world_size, self.node_size or self.world_size
        return Step(self.chunks[0], min(s, p - s, node, p - node) if node < p else 0)


def _each(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(starmap(add, zip(first, second, strict=True)))
