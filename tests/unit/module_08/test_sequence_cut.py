"""Every position lies on one rank, every causal pair is computed once, and zigzag shares the pairs evenly."""

from __future__ import annotations

import pytest
import torch

from course_lib.sequence_cut import SequenceCut
from course_lib.split import split_sizes

CUTS = [(length, size) for size in (1, 2, 3, 4, 5) for length in (5, 8, 13, 16, 30, 61)]


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("length", "size"), CUTS)
def test_all_positions_and_all_causal_pairs_once(length, size, order):
    cut = SequenceCut(length, size, order)
    held = [cut.positions(rank) for rank in range(size)]
    assert sorted(sum(held, [])) == list(range(length))
    assert tuple(map(len, held)) == split_sizes(length, size) == tuple(cut.count(rank) for rank in range(size))
    seen = torch.zeros(length, length, dtype=torch.int)
    for rank in range(size):
        for source in range(size):
            counted = 0
            for queries, keys, diagonal in cut.blocks(rank, source):
                for q in held[rank][queries]:
                    for k in held[source][keys]:
                        if not diagonal or k <= q:
                            seen[q, k] += 1
                            counted += 1
            assert counted == cut.work(rank, source)
    assert torch.equal(seen, torch.ones(length, length, dtype=torch.int).tril())
    assert sum(cut.work(rank) for rank in range(size)) == length * (length + 1) // 2


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_a_gather_is_put_in_order(order):
    cut = SequenceCut(13, 3, order)
    sequence = torch.arange(100, 113)
    gathered = torch.cat([sequence[cut.positions(rank)] for rank in range(3)])
    assert gathered.tolist() == sequence[cut.all_positions()].tolist()
    assert torch.equal(gathered[cut.natural()], sequence)


def test_the_last_of_four_has_seven_sixteenths_and_zigzag_a_quarter():
    length = 4096
    loaf = [SequenceCut(length, 4).work(rank) for rank in range(4)]
    assert loaf[3] / sum(loaf) == pytest.approx(7 / 16, abs=1e-3)
    even = [SequenceCut(length, 4, "zigzag").work(rank) for rank in range(4)]
    assert len(set(even)) == 1


def test_more_ranks_than_positions_are_refused():
    with pytest.raises(
        ValueError, match=r"SequenceCut: 3 positions, 4 ranks; every rank has a position; choose cp in 1..3"
    ):
        SequenceCut(3, 4)
