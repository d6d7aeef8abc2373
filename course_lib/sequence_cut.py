"""Which positions of a sequence each rank has, and how much causal attention that leaves it to compute."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from course_lib.errors import four_parts
from course_lib.split import split_sizes

Order = Literal["contiguous", "zigzag"]
ContextMethod = Literal["all_gather", "ring", "ulysses"]  # how attention meets the keys of other ranks


class Tile(NamedTuple):
    """Queries and keys that meet: stretches of what the two ranks hold, as they hold it."""

    queries: slice
    keys: slice
    diagonal: bool  # the same positions on both sides, so that only the lower triangle counts

    @property
    def pairs(self) -> int:
        """How many pairs of a query and a key attention computes here."""
        n, m = self.queries.stop - self.queries.start, self.keys.stop - self.keys.start
        return n * (n + 1) // 2 if self.diagonal else n * m


@dataclass(frozen=True)
class SequenceCut:
    """A sequence of `length` positions over `size` ranks, of which rank r has as many as `torch.tensor_split` gives it.

    "contiguous" cuts it like a loaf. "zigzag" gives each rank a run from the front and the run as far from the end, so
    that each has as much causal attention to compute as the others. Its counts are those of `tensor_split` too, so a
    collective takes its parts as shards.

    >>> SequenceCut(16, 4, "zigzag").positions(0)
    [0, 1, 14, 15]

    Raises: ValueError for more ranks than positions.
    Source: Brandon et al. 2023 (striped attention, the uneven work); Llama Team 2024, section 3.3.2 (2 cp chunks).
    """

    length: int
    size: int
    order: Order = "contiguous"

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.length:
            values, rule = f"{self.length} positions, {self.size} ranks", "every rank has a position"
            raise ValueError(four_parts("SequenceCut", values, rule, f"choose cp in 1..{self.length}"))

    def count(self, rank: int) -> int:
        """How many positions a rank has."""
        return split_sizes(self.length, self.size)[rank]

    def runs(self, rank: int) -> list[range]:
        """A rank's positions as runs of neighbours, in the order in which it holds them."""
        counts = split_sizes(self.length, self.size)
        if self.order == "contiguous":
            sizes, mine = list(counts), [rank]
        else:
            # Each rank's count is halved here, rather than the length cut into 2p: the halves then add up to the
            # counts of tensor_split, which the collectives expect.
            front = [-(-count // 2) for count in counts]
            back = [count // 2 for count in reversed(counts)]
            sizes, mine = front + back, [rank, 2 * self.size - 1 - rank]
        ends = [0, *accumulate(sizes)]
        return [range(ends[number], ends[number + 1]) for number in mine if sizes[number]]

    def positions(self, rank: int) -> list[int]:
        """What a rank has, in the order in which it holds it."""
        return [position for run in self.runs(rank) for position in run]

    def all_positions(self) -> list[int]:
        """What a gather gives: the positions of rank 0, then those of rank 1, and so on."""
        return [position for rank in range(self.size) for position in self.positions(rank)]

    def natural(self) -> list[int]:
        """The index that puts what a gather gave into the sequence's own order.

        >>> SequenceCut(4, 2, "zigzag").all_positions(), SequenceCut(4, 2, "zigzag").natural()
        ([0, 3, 1, 2], [0, 2, 3, 1])
        """
        gathered = self.all_positions()
        places = [0] * self.length
        for place, position in enumerate(gathered):
            places[position] = place
        return places

    def blocks(self, rank: int, source: int) -> list[Tile]:
        """Where the queries of `rank` see keys of `source` under a causal mask."""
        found, q0 = [], 0
        for queries in self.runs(rank):
            k0 = 0
            for keys in self.runs(source):
                # Runs never overlap: one lies wholly before another, or they are the same run.
                if keys.start < queries.stop:
                    in_q, in_k = slice(q0, q0 + len(queries)), slice(k0, k0 + len(keys))
                    found.append(Tile(in_q, in_k, diagonal=keys.start == queries.start))
                k0 += len(keys)
            q0 += len(queries)
        return found

    def work(self, rank: int, source: int | None = None) -> int:
        """How many pairs of a query and a key a rank computes, with the keys of one rank or of all."""
        sources = range(self.size) if source is None else [source]
        return sum(block.pairs for other in sources for block in self.blocks(rank, other))
