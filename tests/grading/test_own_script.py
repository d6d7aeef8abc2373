"""What is told of a script of the learner's own that ends badly."""

from __future__ import annotations

from course_lib.checks import check

ONE_FAILS = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("mine")
dist.barrier()
"""


def test_the_error_of_the_rank_that_failed_is_told_and_not_that_of_one_which_lost_it():
    assert "an error on rank 1: line 6: ValueError: mine" in check("03.11", ONE_FAILS).reason
