"""Own work is measured in the loop: who computes longer has more of it, who waits for others does not."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import torch
import torch.distributed as dist

from course_lib.gauges import stragglers
from course_lib.ranks import run_ranks
from course_lib.training.after_step import told_by_all
from course_lib.training.loop import train

WORK_S = 0.01


class Paced:
    """A trainer whose step is so much of the processor's time, and an all-reduce in which all wait for the last."""

    options, norm = {"lr": 0.1}, 1.0

    def __init__(self, work_s):
        self.work_s, self.model = work_s, torch.nn.Linear(1, 1)

    def step(self, batch):
        until = time.process_time() + self.work_s
        while time.process_time() < until:
            pass
        dist.all_reduce(torch.ones(1000))
        return 1.0


def own_seconds(slow):
    """Of each step all ranks' own seconds, as each of them got to know them."""
    me = dist.get_rank()
    batches = SimpleNamespace(batch=lambda number: (torch.ones(1), torch.ones(1)))
    if slow is None and me == 1:  # it waits for its data
        batches.batch = lambda number: time.sleep(4 * WORK_S) or (torch.ones(1), torch.ones(1))
    found = []
    for step in train(Paced(WORK_S * (4 if me == slow else 1)), batches, 8):
        stops, own_s = told_by_all(me == 2 and step.number == 8, step.own_s, dist.group.WORLD)
        found.append(replace(step, own_s=own_s).own_s)
        assert stops == (step.number == 8)
    return found


def test_a_slow_rank_is_named_and_the_ranks_that_wait_for_it_are_not():
    for slow, named in ((0, 0), (None, 1)):
        rows = run_ranks(own_seconds, 3, slow)
        assert rows[0] == rows[1] == rows[2] and {len(row) for row in rows[0]} == {3}
        (found,) = stragglers(rows[0])
        assert found.rank == named and found.ratio > 2


def test_alone_a_rank_tells_itself_and_a_gpu_tells_nothing():
    assert told_by_all(True, (0.5,), None) == (True, (0.5,))
    assert told_by_all(False, (), None) == (False, ())
