"""When a rank of a pipeline posts its receives, and when it lets go of what it sent."""

from __future__ import annotations

import doctest
import weakref
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from pipeline_models import numbers
from torch import nn

from course_lib import comm
from course_lib.config import TrainConfig
from course_lib.parallel import pipeline
from course_lib.ranks import ledger, run_ranks
from course_lib.schedules import Compute, make_schedule
from course_lib.training.pipeline_parallel import PipelineTrainer


def trainer_of(schedule):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), *(nn.Linear(8, 8) for _ in range(schedule.n_stages - 1)))
    return PipelineTrainer(model, TrainConfig(), schedule=schedule)


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


def computed(schedule):
    trainer = trainer_of(schedule)
    comm.ledger.clear()
    trainer.compute_gradients(numbers(0))


def test_a_receive_is_posted_before_the_computation_that_it_stands_behind():
    run_ranks(computed, 2, make_schedule("gpipe", 2, 4))
    events = [event for event in ledger().events if event.rank == 1]
    forwards = [event.start_s for event in events if event.operation == "forward"]
    receives = [event.start_s for event in events if event.operation == "irecv"]
    assert len(receives) == len(forwards) == 4
    assert all(posted < begun for posted, begun in zip(receives[1:], forwards, strict=False))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1"])
def test_of_a_list_only_the_receives_move(name):
    for instructions in make_schedule(name, 4, 8, stages_per_rank=2 if name == "interleaved" else 1).lists:
        moved = list(pipeline.receives_ahead(instructions))
        kinds = ((pipeline.RecvActivation, pipeline.RecvGradient), (Compute, pipeline.SendActivation))
        for kind in (*kinds, pipeline.SendGradient):
            assert [one for one in moved if isinstance(one, kind)] == [
                one for one in instructions if isinstance(one, kind)
            ]
        assert len(moved) == len(instructions)


def test_the_example_of_the_docstring():
    assert doctest.testmod(pipeline) == (0, 1)
