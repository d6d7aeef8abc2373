"""Ring attention as plain data: whose keys each rank has in each step, and what it computes with them."""

from __future__ import annotations

from typing import NamedTuple

from course_lib.sequence_cut import SequenceCut, Tile


class Meeting(NamedTuple):
    """One rank's queries with the keys that it has in one step; no blocks if all of these keys are later."""

    rank: int
    source: int
    blocks: tuple[Tile, ...]

    @property
    def pairs(self) -> int:
        return sum(block.pairs for block in self.blocks)


def rounds(cut: SequenceCut) -> list[list[Meeting]]:
    """By step, by rank: in each step keys and values have come one rank further.

    >>> [[meeting.source for meeting in step] for step in rounds(SequenceCut(3, 3))]
    [[0, 1, 2], [2, 0, 1], [1, 2, 0]]

    Source: Liu et al. 2023 (ring attention).
    """
    p = cut.size
    return [
        [Meeting(rank, source, tuple(cut.blocks(rank, source))) for rank in range(p) for source in [(rank - step) % p]]
        for step in range(p)
    ]


def busiest(steps: list[list[Meeting]]) -> list[int]:
    """By step, the pairs of the rank that computes most: the others wait for it before the keys move on.

    >>> busiest(rounds(SequenceCut(16, 4))), busiest(rounds(SequenceCut(16, 4, "zigzag")))
    ([10, 16, 16, 16], [10, 8, 8, 8])
    """
    return [max(meeting.pairs for meeting in step) for step in steps]
