"""When a rank of a pipeline lets go of what it sent."""

from __future__ import annotations

import weakref
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from pipeline_models import numbers, staged
from torch import nn

from course_lib import comm
from course_lib.config import TrainConfig
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule


def trainer_of(schedule):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), *(nn.Linear(8, 8) for _ in range(schedule.n_stages - 1)))
    return staged(model, TrainConfig(), schedule)


def kept_gradients(schedule):
    """How many sent tensors were still there when this rank sent another, and how many are in the end."""
    trainer, sent, kept = trainer_of(schedule), [], []
    isend = comm.isend

    def counted(x, *args):
        kept.append(sum(one() is not None for one in sent))
        sent.append(weakref.ref(x))
        return isend(x, *args)

    with mock.patch.object(comm, "isend", counted):
        trainer.compute_gradients(numbers(0))
    return dist.get_rank(), kept, sum(one() is not None for one in sent)


@pytest.mark.parametrize(("name", "p"), [("gpipe", 2), ("1f1b", 2), ("zb-h1", 3), ("gpipe", 3)])
def test_no_more_sent_gradients_are_kept_than_there_are_ranks(name, p):
    m = 12
    rank, kept, left = run_ranks(kept_gradients, p, make_schedule(name, p, m))[-1]
    assert rank == p - 1  # it sends gradients alone
    assert kept == [min(number, p) for number in range(m)]
    assert left == 0
