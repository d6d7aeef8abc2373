"""Which collectives the ranks compare, and which not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.ranks import run_ranks, watch


def test_timings_and_the_packages_own_collectives_are_not_compared_again():
    def count():
        compared = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(watch.Comparison, "compare", lambda self: compared.append(self.what))
            with comm.settings(guard=False):
                dist.all_reduce(torch.ones(1))
            for algorithm in ("ring", "native"):
                comm.all_reduce(torch.ones(4), algorithm=algorithm)
            dist.all_reduce(torch.ones(1))
            dist.all_gather_object([None] * dist.get_world_size(), "words")
        return compared

    of_objects = ["all_gather in all_gather_object"] * 2  # their lengths, then their bytes
    assert run_ranks(count, 2) == [["all_reduce", *of_objects]] * 2
