"""For 09.3 and 09.4: a text that is cut over ranks, one hop of the ring, and what the ledger says of all hops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.said import plural, wrong_means
from course_lib.checks.kit.spec import FP64
from course_lib.comm.ledger import Ledger
from course_lib.sequence_cut import SequenceCut

_HEADS, DIM = 2, 3
_MEANS = "comm.irecv and comm.isend"
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})


@dataclass(frozen=True, kw_only=True)
class Text:
    """So many positions on so many ranks, cut in some order; where it looks at the `ring`, hops and bytes count too."""

    world_size: int
    length: int
    order: Literal["contiguous", "zigzag", "striped"]
    ring: bool = False
    look: bool = False  # at collectives: a ring has none

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'rank')}, {plural(self.length, 'position')}, {self.order}"

    def positions(self) -> list[list[int]]:
        """Each rank's; striped, they are dealt out like cards."""
        p = self.world_size
        if self.order == "striped":
            return [list(range(rank, self.length, p)) for rank in range(p)]
        cut = SequenceCut(self.length, p, self.order)
        return [cut.positions(rank) for rank in range(p)]

    def drawn(self, seed: int) -> list[Tensor]:
        """q, k, v and the gradient of the output, of the whole sequence; some scores are large."""
        source = generator(seed, self.world_size, self.length, len(self.order))
        q, k, v, gradient = torch.randn(4, _HEADS, self.length, DIM, generator=source)
        return [2 * q, 2 * k, v, gradient]

    def kv_bytes(self, rank: int | None = None) -> int:
        """Of the keys and values of a rank, or of all."""
        numbers = self.length if rank is None else len(self.positions()[rank])
        return 2 * _HEADS * DIM * FP64 * numbers

    def sends(self, rank: int) -> int:
        """Bytes of keys and values: all but those of the next rank, which are there already."""
        return self.kv_bytes() - self.kv_bytes((rank + 1) % self.world_size)


# Of both exercises: each order once, then lengths that do not divide, then what travels.
VALUES = (
    Text(world_size=4, length=16, order="zigzag"),
    Text(world_size=3, length=12, order="contiguous"),
    Text(world_size=2, length=8, order="striped"),
)
UNEVEN = (
    Text(world_size=4, length=13, order="zigzag"),
    Text(world_size=3, length=11, order="striped"),
    Text(world_size=4, length=5, order="contiguous"),
)
HOPS = (
    Text(world_size=4, length=13, order="zigzag", ring=True),
    Text(world_size=3, length=10, order="contiguous", ring=True),
    Text(world_size=1, length=6, order="contiguous", ring=True),
)


def seen(positions: Sequence[Sequence[int]], rank: int, source: int) -> Tensor:
    """Which keys of a source the queries of a rank see: those at their own position and before."""
    mine, theirs = (torch.tensor(positions[one]) for one in (rank, source))
    return mine.unsqueeze(-1) >= theirs


def own_triangle(positions: Sequence[Sequence[int]], rank: int, source: int) -> Tensor:
    """Row against column, as if each block were causal by itself."""
    return everything(positions, rank, source).tril()


def everything(positions: Sequence[Sequence[int]], rank: int, source: int) -> Tensor:
    """As if nothing were masked."""
    return torch.ones(len(positions[rank]), len(positions[source]), dtype=torch.bool)


def own_block_alone(positions: Sequence[Sequence[int]], rank: int, source: int) -> Tensor:
    """Right in the rank's own block, and nothing is masked in others."""
    return seen(positions, rank, source) if source == rank else everything(positions, rank, source)


def of_the_other_side(positions: Sequence[Sequence[int]], rank: int, source: int) -> Tensor:
    """As if blocks came from the next rank."""
    return seen(positions, rank, (2 * rank - source) % len(positions))


def whole_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """On one device."""
    length = q.shape[-2]
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(length, length, dtype=torch.bool).tril()
    )


def passed_on(x: Tensor, count: int) -> Tensor:
    """Runs on a rank: send `x` to the next rank, and return what the one before has sent, of so many positions."""
    rank, p = dist.get_rank(), dist.get_world_size()
    if p == 1:
        return x
    into = x.new_empty(*x.shape[:-2], count, x.shape[-1])
    receiving = comm.irecv(into, (rank - 1) % p)
    comm.isend(x.contiguous(), (rank + 1) % p).wait()
    receiving.wait()
    return into


def wrong_hops(case: Text, book: Ledger, targets: Sequence[int], one_more: str) -> str | None:
    """What is said of right values that came by other ways, or by more bytes than `targets`; `one_more` hop, why."""
    if case.world_size == 1:
        return None
    if foreign := sorted({event.operation for event in book.events} - _POINT_TO_POINT):
        return f"right values, but by comm.{foreign[0]}: this exercise asks you to build it from {_MEANS}"
    if reason := wrong_means(book, f"{_MEANS}, not torch.distributed's own calls"):
        return reason
    if not case.ring:
        return None
    for rank, target in enumerate(targets):
        after, sent = (rank + 1) % case.world_size, book.bytes_sent(rank)
        peers = {event.peer for event in book.events if event.rank == rank and event.kind == "send"}
        if other := sorted(peer for peer in peers - {after} if peer is not None):
            return (
                f"values right, but rank {rank} sends to rank {other[0]}; in this ring it sends to rank {after} alone"
            )
        if sent > target:
            why = f": {one_more}" if sent - target == case.kv_bytes(after) else ""
            return f"values right, but rank {rank} sends {sent} bytes, target {target}{why}"
    return None
