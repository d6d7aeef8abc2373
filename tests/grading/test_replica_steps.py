"""Right answers to exercises of module 03, written in other ways than the solutions; what is seen of forwards."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.checks import check
from course_lib.checks.kit.forwards import forwards_of

P = dist.get_world_size


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


# 03.1 and 03.6 -------------------------------------------------------------------------------------------------------


def divides_first(model):
    for p in trained(model)[::-1]:
        p.grad = comm.all_reduce((torch.zeros_like(p) if p.grad is None else p.grad) / P())


def in_place(model):
    for p in trained(model):
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        comm.all_reduce_(p.grad, op=dist.ReduceOp.AVG)


def buckets_by_hand(model, bucket_bytes):
    bucket, left = [], trained(model)[::-1]
    while left:
        bucket.append(left.pop(0))
        if not left or sum(p.nbytes for p in bucket) >= bucket_bytes:
            flat = comm.all_reduce(torch.cat([divided(p).flatten() for p in bucket]))
            for p in bucket:
                p.grad, flat = flat[: p.numel()].view_as(p).clone(), flat[p.numel() :]
            bucket = []


def divided(p):
    return (torch.zeros_like(p) if p.grad is None else p.grad) / P()


# 03.3 ----------------------------------------------------------------------------------------------------------------


def weighs_the_mean(model, inputs, targets):
    """And looks at the loss of its share once more, without a gradient."""
    mine = (targets != -100).sum()
    counted = comm.all_reduce(mine)
    loss = F.cross_entropy(model(inputs), targets) if mine else model(inputs).sum() * 0
    (loss * mine * P() / counted).backward()
    in_place(model)
    with torch.no_grad():
        summed = F.cross_entropy(model(inputs), targets, reduction="sum")
    return comm.all_reduce(summed) / counted


# 03.7 ----------------------------------------------------------------------------------------------------------------


def the_last_one_first(model, parts):
    rows = sum(len(targets) for _, targets in parts)
    with model.no_sync():
        for inputs, targets in parts[:0:-1]:
            (F.cross_entropy(model(inputs), targets, reduction="sum") / rows).backward()
    inputs, targets = parts[0]
    (F.cross_entropy(model(inputs), targets, reduction="sum") / rows).backward()


def divides_at_the_end(model, parts):
    with model.no_sync():
        for inputs, targets in parts[:-1]:
            F.cross_entropy(model(inputs), targets, reduction="sum").backward()
    F.cross_entropy(model(parts[-1][0]), parts[-1][1], reduction="sum").backward()
    for p in trained(model):
        p.grad /= sum(len(targets) for _, targets in parts)


ANSWERS = {
    "03.1": (divides_first, in_place),
    "03.3": (weighs_the_mean,),
    "03.6": (buckets_by_hand,),
    "03.7": (the_last_one_first, divides_at_the_end),
}


@pytest.mark.parametrize(
    ("exercise", "answer"), [(exercise, answer) for exercise, answers in ANSWERS.items() for answer in answers]
)
def test_a_right_answer_passes_however_it_is_written(exercise, answer):
    assert check(exercise, answer).passed


def test_a_counter_that_begins_anew_in_each_step_mends_03_9_too():
    """Its micro-batches are Counting's, which the learner may use, and not the course's engine's."""
    from tests.grading.conftest import edited  # the ranks import this file, and need not wait for that one

    mended = "self.seen = -len(parts)\n        return super().compute_gradients(batch)\n"
    answer = edited("03.9", {"        total, summed = count": f"        {mended}        total, summed = count"})
    assert check("03.9", answer).passed


# what is seen of forwards ---------------------------------------------------------------------------------------------


def test_the_largest_forward_and_the_graphs_that_wait_are_seen():
    model = torch.nn.Linear(3, 1)
    with forwards_of(model) as seen:
        for rows in (2, 5, 4):
            model(torch.ones(rows, 3)).sum().backward()
        assert (seen.rows, seen.held) == (5, 1)
        both = model(torch.ones(1, 3)).sum() + model(input=torch.ones(7, 3)).sum()
        both.backward()
        assert (seen.rows, seen.held) == (7, 2)
        with torch.no_grad():
            model(torch.ones(9, 3))
        copy.deepcopy(model)(torch.ones(8, 3)).sum().backward()
        assert (seen.rows, seen.held) == (8, 2)
    model(torch.ones(10, 3))
    assert (seen.rows, seen.held) == (8, 2)
