"""Own work is measured in the loop: who computes longer has more of it, who waits for others does not."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_lib.gauges import stragglers
from course_lib.ranks import run_ranks
from course_lib.training.loop import train
from course_lib.training.own_seconds import OwnSeconds

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


def own_seconds(slow, late):
    """All ranks' own seconds as each of them got to know them; `late` waits for its data."""
    me = dist.get_rank()
    batches = SimpleNamespace(batch=lambda number: (torch.ones(1), torch.ones(1)))
    if me == late:
        batches.batch = lambda number: time.sleep(4 * WORK_S) or (torch.ones(1), torch.ones(1))
    own, trainer = OwnSeconds(dist.group.WORLD), Paced(WORK_S * (4 if me == slow else 1))
    return [own.told(step.number, step.own_s) for step in train(trainer, batches, 10)]


@pytest.mark.parametrize(("slow", "late"), [(0, None), (None, 1)])
def test_a_slow_rank_is_named_and_the_ranks_that_wait_for_it_are_not(slow, late):
    rows = run_ranks(own_seconds, 3, slow, late)
    assert rows[0] == rows[1] == rows[2] and rows[0][:-1] == [()] * 9
    (found,) = stragglers(rows[0][-1:])
    assert found.rank == (late if slow is None else slow) and found.ratio > 2


def test_alone_a_rank_tells_itself_and_a_gpu_tells_nothing():
    own = OwnSeconds(None)
    assert [own.told(step, (float(step),)) for step in (8, 9, 10, 11)] == [(), (), (9.0,), ()]
    assert own.told(20, (1.0,)) == (6.0,) and own.told(30, ()) == ()
