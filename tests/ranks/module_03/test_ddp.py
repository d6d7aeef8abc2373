"""The naive average on real ranks; `test_ddp_wrapper.py` holds the wrapper, `test_ladder.py` trains with it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from course_lib.parallel.data.buckets import average_gradients
from course_lib.ranks import run_ranks


class TwoWays(nn.Module):
    """Tokens above 127 pass through one matrix, the others through another, and nothing through the third."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 6)
        self.ways = nn.ModuleList(nn.Linear(6, 256, bias=False) for _ in range(3))

    def forward(self, tokens):
        high = int(tokens.float().mean() > 127)
        return self.ways[high](self.embedding(tokens))


def gradients_of_two_ways():
    torch.manual_seed(0)
    model = TwoWays()
    rank = dist.get_rank()
    model(torch.full((1, 4), 200 * (rank == 1))).sum().backward()
    missing = [way.weight.grad is None for way in model.ways]
    average_gradients(model)
    return missing, [way.weight.grad for way in model.ways]


def test_a_gradient_that_a_rank_does_not_have_counts_as_zero():
    results = run_ranks(gradients_of_two_ways, 2)
    assert [missing for missing, _ in results] == [[False, True, True], [True, False, True]]
    for _, (low, high, unused) in results:
        assert torch.equal(low, results[0][1][0]) and torch.equal(high, results[0][1][1])
        assert low.abs().sum() > 0 and high.abs().sum() > 0
        assert not unused.any()
