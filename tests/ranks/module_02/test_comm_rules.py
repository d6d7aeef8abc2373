"""What the collectives refuse, and what they promise beyond values and bytes."""

from __future__ import annotations

import gc
import re
import time
import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.comm import EmulatedClock
from course_lib.costs import comm_time
from course_lib.hardware import Link
from course_lib.ranks import RankError, ledger, run_ranks

TOY = Link(name="toy", alpha_s=20e-6, bandwidth_bytes_per_s=1e9, source="a test", date="2026-11")
SLOW = Link(name="slow toy", alpha_s=40e-6, bandwidth_bytes_per_s=2e8, source="a test", date="2026-11")


def refused(fn, world_size=4):
    """The one message that all ranks raise; the same processes must go on working."""
    pids = run_ranks(lambda: __import__("os").getpid(), world_size)
    with pytest.raises(RankError) as caught:
        run_ranks(fn, world_size)
    assert run_ranks(lambda: __import__("os").getpid(), world_size) == pids
    message = str(caught.value)
    assert message.startswith("all ranks failed"), message
    text = message.split("ValueError: ")[1]
    assert text.count("; ") == 2 and "\n" not in text, text
    return text


def test_unequal_lengths():
    text = refused(lambda: comm.all_reduce(torch.ones(5 if dist.get_rank() == 3 else 4)))
    assert text.startswith("all_reduce: length is 4 on ranks 0, 1, 2 and 5 on rank 3; ")


def test_unequal_shapes_of_equal_length():
    text = refused(lambda: comm.broadcast(torch.ones(4, 2 if dist.get_rank() else 3)))
    assert text.startswith("broadcast: row is 3 on rank 0 and 2 on ranks 1, 2, 3; ")


def test_unequal_dtypes():
    text = refused(lambda: comm.all_reduce(torch.ones(4).to(torch.int64 if dist.get_rank() == 1 else torch.float32)))
    assert "dtype is torch.float32 on ranks 0, 2, 3 and torch.int64 on rank 1; " in text


def test_different_collectives():
    def differ():
        x = torch.ones(4)
        return comm.all_reduce(x) if dist.get_rank() else comm.broadcast(x)

    assert "operation is broadcast on rank 0 and all_reduce on ranks 1, 2, 3; " in refused(differ)


def test_one_rank_with_a_strided_tensor_stops_all():
    def strided():
        x = torch.ones(4, 4)
        comm.all_reduce(x.t()[:3] if dist.get_rank() == 2 else x[:3])

    assert "strides (1, 4) on rank 2; a message is contiguous memory; " in refused(strided)


def test_one_rank_with_an_empty_tensor_stops_all():
    text = refused(lambda: comm.all_reduce(torch.ones(0 if dist.get_rank() == 1 else 4)))
    assert "an empty tensor of shape (0,) on rank 1; " in text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: comm.broadcast(torch.ones(1), src=4), r"broadcast: src=4; src is a rank of the group; "),
        (lambda: comm.reduce(torch.ones(1), dst=-1), r"reduce: dst=-1; dst is a rank of the group; "),
        (lambda: comm.all_reduce(torch.ones(1), algorithm="star"), "all_reduce: algorithm='star'; "),
        (lambda: comm.all_reduce(torch.ones(1), op=ReduceOp.PRODUCT), "all_reduce: op=.*PRODUCT"),
        (lambda: comm.all_reduce(torch.ones(1).long(), op=ReduceOp.AVG), "op=AVG of torch.int64; an average needs"),
        (
            lambda: comm.all_reduce(torch.ones(1), algorithm="hierarchical", node_size=3),
            r"node_size=3 with 4 ranks; all nodes hold equally many; choose one of \[1, 2, 4\]",
        ),
        (lambda: comm.all_gather(torch.ones(1), length=7), "a shard of 1 rows on rank 0, length=7, 4 ranks; "),
    ],
)
def test_a_wrong_argument(call, message):
    assert re.search(message, refused(call))


def test_uneven_shards_without_a_length():
    text = refused(lambda: comm.all_gather(torch.ones(2 if dist.get_rank() == 0 else 1)))
    assert text.startswith("all_gather: length is ")


def test_a_peer_that_is_no_other_rank():
    def to_myself():
        comm.send(torch.ones(1), dst=dist.get_rank())

    with pytest.raises(
        RankError, match=r"send: dst=\d on rank \d; the peer is another rank of the group; choose dst in"
    ):
        run_ranks(to_myself, 2)


def test_what_is_no_tensor_is_no_message():
    def forgotten():
        if dist.get_rank() == 1:
            comm.send(torch.ones(2).grad, 0)
        else:
            comm.recv(torch.empty(2), 1)

    message = "send: a NoneType on rank 1; a message is the numbers of a tensor; pass a tensor; for x.grad"
    with pytest.raises(RankError, match=message):
        run_ranks(forgotten, 2)


def test_without_the_guard_the_rank_itself_still_refuses():
    def unguarded():
        with comm.settings(guard=False):
            comm.all_reduce(torch.ones(4, 4).t())

    with pytest.raises(RankError, match="a message is contiguous memory; pass x.contiguous"):
        run_ranks(unguarded, 2)


def subgroup_sums():
    rank = dist.get_rank()
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3, 4])
    mine = low if rank < 2 else high
    total = comm.all_reduce(torch.tensor([float(rank)]), group=mine)
    root = comm.broadcast(torch.tensor([float(rank)]), src=2, group=high) if rank >= 2 else torch.tensor([2.0])
    everyone = comm.all_reduce(torch.tensor([1.0]))
    return total.item(), root.item(), everyone.item()


def test_subgroups_and_their_own_call_numbers():
    assert run_ranks(subgroup_sums, 5) == [(1.0, 2.0, 5.0)] * 2 + [(9.0, 2.0, 5.0)] * 3
    assert {event.peer for event in ledger().events if event.rank == 3 and event.call == 1} <= {0, 1, 2, 4}


def test_a_group_that_this_rank_is_not_in():
    def outsider():
        group = dist.new_group([0, 1])
        comm.all_reduce(torch.ones(1), group=group)

    with pytest.raises(RankError, match="rank 2 is not in the group; only members call a group's collectives"):
        run_ranks(outsider, 3)


def learners_ring(whole):
    """Sum a vector of 12 around the ring: `whole` sends all of it at every step, the silent bug of the module."""
    rank, p = dist.get_rank(), dist.get_world_size()
    x = torch.arange(12.0) + rank
    moving, total = x.clone(), x.clone()
    for _ in range(p - 1):
        arrived = torch.empty_like(moving)
        handle = comm.isend(moving if whole else moving[:3], (rank + 1) % p)
        comm.recv(arrived if whole else arrived[:3], (rank - 1) % p)
        handle.wait()
        moving = arrived
        total += moving
    return total.tolist()


def test_learners_messages_are_recorded():
    totals = run_ranks(learners_ring, 4, True)
    assert totals == [[4.0 * i + 6 for i in range(12)]] * 4
    assert [ledger().bytes_sent(rank) for rank in range(4)] == [3 * 48] * 4
    run_ranks(learners_ring, 4, False)
    assert [ledger().bytes_sent(rank) for rank in range(4)] == [3 * 12] * 4


def test_average_equals_native_and_one_device():
    def average(algorithm):
        return comm.all_reduce(torch.arange(5.0) * dist.get_rank(), op=ReduceOp.AVG, algorithm=algorithm).tolist()

    for algorithm in ("ring", "tree", "native"):
        assert run_ranks(average, 4, algorithm) == [[1.5 * i for i in range(5)]] * 4


def test_matrices_are_split_by_rows():
    def rows():
        x = torch.arange(10.0).view(5, 2) * (dist.get_rank() + 1)
        shard = comm.reduce_scatter(x)
        return torch.equal(comm.all_gather(shard, length=5), torch.arange(10.0).view(5, 2) * 6)

    assert run_ranks(rows, 3) == [True] * 3


def test_inputs_are_left_alone():
    def untouched():
        x = torch.ones(6)
        for call in (comm.all_reduce, comm.reduce_scatter, comm.broadcast, comm.reduce, comm.scatter, comm.all_to_all):
            call(x)
        return x.tolist()

    assert run_ranks(untouched, 3) == [[1.0] * 6] * 3


def test_a_dropped_handle_is_reported():
    def drop():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if dist.get_rank() == 0:
                comm.isend(torch.ones(1), 1)
                gc.collect()
            return [str(warning.message) for warning in caught]

    assert run_ranks(drop, 2) == [["isend to 1: its handle was dropped before wait()"], []]


def test_ranks_that_all_send_first_are_told_to_whom():
    def all_send_first():
        right = (dist.get_rank() + 1) % 3
        comm.isend(torch.ones(4), right).wait()

    with pytest.raises(RankError, match=r"rank 0 waits in isend to 1, line \d+.*; rank 1 waits in isend to 2, line"):
        run_ranks(all_send_first, 3, timeout=1)


def test_settings_switch_off_ledger_and_guard():
    def quiet():
        with comm.settings(guard=False, ledger=False):
            comm.all_reduce(torch.ones(4))
        return comm.all_reduce(torch.ones(4)).tolist()

    assert run_ranks(quiet, 2) == [[2.0] * 4] * 2
    assert {event.call for event in ledger().events} == {2}


def timed_all_reduce(algorithm, clock, length):
    """Real seconds of one all-reduce under the clock."""
    with comm.emulated(clock):
        started = time.monotonic()
        comm.all_reduce(torch.ones(length), algorithm=algorithm, node_size=clock.node_size)
        return time.monotonic() - started


@pytest.mark.parametrize("algorithm", ["ring", "naive", "tree"])
def test_the_emulated_clock_follows_the_formula(algorithm):
    length = 40_000  # 160 kB: a whole message lasts 0.18 ms emulated, so some 50 ms here
    real_s = run_ranks(timed_all_reduce, 4, algorithm, EmulatedClock(inside=TOY, slowdown=300), length)
    formula = comm_time("all_reduce", algorithm, world_size=4, length=length, itemsize=4)
    assert max(real_s) > 0.9 * 300 * formula.time_s(TOY)  # the time really passes
    assert ledger().span_s == pytest.approx(formula.time_s(TOY), rel=0.1)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_slow_links_between_emulated_nodes(algorithm):
    clock = EmulatedClock(inside=TOY, between=SLOW, node_size=2, slowdown=200)
    run_ranks(timed_all_reduce, 4, algorithm, clock, 40_000)
    formula = comm_time("all_reduce", algorithm, world_size=4, length=40_000, itemsize=4, node_size=2)
    assert ledger().span_s == pytest.approx(formula.time_s(TOY, SLOW), rel=0.1)


@pytest.mark.parametrize("algorithm", ["ring", "native"])
@pytest.mark.parametrize("clock", [EmulatedClock(inside=TOY, slowdown=1.0), None])
def test_a_ledger_knows_whether_its_times_are_emulated(algorithm, clock):
    def work():
        with comm.emulated(clock) if clock else nullcontext():
            comm.all_reduce(torch.ones(3), algorithm=algorithm)
            comm.compute(1e-6)

    run_ranks(work, 2)
    assert {event.emulated for event in ledger().events} == {clock is not None}
    assert ledger().emulated == (clock is not None)


def test_computing_is_padded_under_the_clock():
    def work():
        with comm.emulated(EmulatedClock(inside=TOY, slowdown=1000)):
            comm.compute(100e-6, "forward")

    run_ranks(work, 2)
    forward = [event for event in ledger().events if event.operation == "forward"]
    assert len(forward) == 2
    for event in forward:
        assert event.end_s - event.start_s == pytest.approx(100e-6, rel=0.1)


@pytest.mark.parametrize("wrong", [{"between": SLOW}, {"node_size": 2}, {"slowdown": 0}])
def test_an_impossible_clock(wrong):
    with pytest.raises(ValueError, match="EmulatedClock: "):
        EmulatedClock(**{"inside": TOY, **wrong})
