"""Cuts in equal parts are torch's; no cut by cost has a cheaper heaviest part."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from course_lib.split import balanced_sizes, split_sizes


def test_chunks_are_those_of_tensor_split():
    for length in range(20):
        for parts in range(1, 9):
            chunks = torch.arange(length).tensor_split(parts)
            assert split_sizes(length, parts) == tuple(len(chunk) for chunk in chunks)


def every_way(n_layers, n_stages):
    """All sizes, by brute force."""
    if n_stages == 1:
        return [(n_layers,)]
    return [
        (first, *rest)
        for first in range(1, n_layers - n_stages + 2)
        for rest in every_way(n_layers - first, n_stages - 1)
    ]


def heaviest(costs, sizes):
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    return max(sum(costs[start:end]) for start, end in pairwise(ends))


@pytest.mark.parametrize("n_stages", [1, 2, 3, 4, 7])
def test_no_other_cut_has_a_cheaper_heaviest_stage(n_stages):
    for seed in range(20):
        costs = torch.randint(1, 20, (7,), generator=torch.Generator().manual_seed(seed)).tolist()
        found = balanced_sizes(costs, n_stages)
        assert len(found) == n_stages and sum(found) == 7
        assert heaviest(costs, found) == min(heaviest(costs, sizes) for sizes in every_way(7, n_stages))


def test_more_stages_than_layers_cannot_be_balanced():
    with pytest.raises(
        ValueError, match="^balanced_sizes: 3 stages, 2 layers; each stage has a layer; choose n_stages in"
    ):
        balanced_sizes([1, 2], 3)
