"""Other right answers to the exercises of module 02 are accepted, and the ring's rule sees what is no circle."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.checks import check
from course_lib.checks.kit.spec import Case
from course_lib.checks.module_02.ring import one_circle
from tests.grading.conftest import answer_of


def to_the_left():
    """The ring that turns the other way; what is defined in here travels to the ranks without this file."""

    def neighbours():
        rank, p = dist.get_rank(), dist.get_world_size()
        return rank, p, (rank - 1) % p, (rank + 1) % p

    def swap(outgoing, to, like, source):
        incoming = comm.irecv(inbox := torch.empty_like(like), source)
        comm.isend(outgoing, to).wait()
        incoming.wait()
        return inbox

    def reduce_scatter(x):
        rank, p, left, right = neighbours()
        chunks = x.clone().tensor_split(p)
        for step in range(1, p):
            mine = chunks[(rank + step + 1) % p]
            mine += swap(chunks[(rank + step) % p], left, mine, right)
        return chunks[rank]

    def all_gather(shard, length):
        rank, p, left, right = neighbours()
        whole = shard.new_empty((length, *shard.shape[1:]))
        chunks = whole.tensor_split(p)
        chunks[rank].copy_(shard)
        for step in range(p - 1):
            room = chunks[(rank + step + 1) % p]
            room.copy_(swap(chunks[(rank + step) % p], left, room, right))
        return whole

    return {"02.2": reduce_scatter, "02.3": all_gather}


@pytest.mark.parametrize("exercise", to_the_left())
def test_a_ring_may_turn_the_other_way(exercise):
    assert check(exercise, to_the_left()[exercise]).reason == ""


def in_other_orders():
    def of_all(x):
        """Every rank's x, by pairs and not around a ring."""
        rank, p = dist.get_rank(), dist.get_world_size()
        found = [x] * p
        for shift in range(1, p):
            incoming = comm.irecv(inbox := torch.empty_like(x), (rank - shift) % p)
            comm.isend(x, (rank + shift) % p).wait()
            incoming.wait()
            found[(rank - shift) % p] = inbox
        return torch.stack(found)

    def average(add):
        return lambda x: add(of_all(x)) / dist.get_world_size()

    return {
        "the last rank first": average(lambda rows: sum(rows.flip(0))),
        "the smallest number first": average(lambda rows: sum(rows.sort(0).values)),
        "in pairs": average(lambda rows: rows[::2].sum(0) + rows[1::2].sum(0)),
        "in float64": average(lambda rows: rows.double().sum(0).float()),
    }


@pytest.mark.parametrize("order", in_other_orders())
def test_any_order_of_adding_is_right_that_is_the_same_on_all_ranks(order):
    assert check("02.9", in_other_orders()[order]).reason == ""


def test_a_tree_that_is_right_on_seven_ranks_is_accepted(answers):
    assert check("02.5", answer_of("02.5", answers, "solutions"), part="steps").passed


def test_two_small_circles_are_not_one():
    pairs = [[0, 8, 0, 0], [8, 0, 0, 0], [0, 0, 0, 8], [0, 0, 8, 0]]
    assert one_circle(Case(world_size=4, length=8), pairs) == (
        "but this is no ring: who follows the messages from rank 0 never comes to ranks 2, 3"
    )
    assert one_circle(Case(world_size=1, length=8), [[0]]) is None
