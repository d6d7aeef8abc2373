"""All-reduce in the background: values, order, bytes, errors, hangs, and two streams under the emulated clock."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.comm import EmulatedClock
from course_lib.costs import comm_time
from course_lib.hardware import Link
from course_lib.ranks import RankError, RankTimeout, ledger, run_ranks

TOY = Link(name="toy", alpha_s=20e-6, bandwidth_bytes_per_s=1e9, source="a test", date="2026-11")
ALGORITHMS = ["naive", "ring", "tree", "recursive_doubling", "halving_doubling", "native"]


def several_at_once(algorithm):
    """Three tensors under way together, a message and a synchronous sum behind them."""
    rank, p = dist.get_rank(), dist.get_world_size()
    xs = [torch.full((length,), float(rank + length)) for length in (1, 7, 1000)]
    handles = [comm.all_reduce_(x, op=ReduceOp.AVG, algorithm=algorithm, async_op=True) for x in xs]
    token = comm.irecv(torch.zeros(1), (rank - 1) % p) if p > 1 else None
    if token is not None:
        comm.send(torch.ones(1), (rank + 1) % p)
        token.wait()
    total = comm.all_reduce(torch.tensor([1.0]))
    for handle in reversed(handles):
        handle.wait()
    return total.item(), [(x.min().item(), x.max().item()) for x in xs]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4], scope="module")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_values_and_order(world_size, algorithm):
    mean = (world_size - 1) / 2
    expected = [(mean + length, mean + length) for length in (1, 7, 1000)]
    for total, found in run_ranks(several_at_once, world_size, algorithm):
        assert total == world_size
        assert found == [pytest.approx(pair, rel=1e-6) for pair in expected]
    assert [(number, name) for number, name, _ in ledger().calls()] == [
        (number, "all_reduce") for number in range(1, 5) if world_size > 1 or (algorithm == "native" and number < 4)
    ]


@pytest.mark.parametrize("world_size", [2, 3], scope="module")
def test_bytes_equal_the_formula(world_size):
    run_ranks(several_at_once, world_size, "ring")
    for number, length in enumerate((1, 7, 1000), start=1):
        cost = comm_time("all_reduce", "ring", world_size=world_size, length=length, itemsize=4)
        sends = [event for event in ledger().events if (event.call, event.kind) == (number, "send")]
        for rank in range(world_size):
            mine = [event.nbytes for event in sends if event.rank == rank]
            assert (sum(mine), len(mine)) == (cost.sent_bytes[rank], cost.messages[rank])


def calls_follow_one_another():
    """A rank that is late with its launch does not disturb the order of the others' calls."""
    time.sleep(0.05 * dist.get_rank())
    with comm.settings(guard=False):
        x = torch.ones(3)
        handle = comm.all_reduce_(x, async_op=True)
        y = comm.all_reduce(x)  # of what the call in the background left
        handle.wait()
    return y.tolist(), [thread.name for thread in threading.enumerate()].count("communication")


def test_a_synchronous_call_waits_for_the_background_and_one_thread_does_it_all():
    for _ in range(2):
        assert run_ranks(calls_follow_one_another, 3) == [([9.0] * 3, 1)] * 3


def test_settings_are_those_of_the_launch():
    def quiet():
        with comm.settings(guard=False, ledger=False):
            first = comm.all_reduce_(torch.ones(4), async_op=True)
        second = comm.all_reduce_(torch.ones(4), async_op=True)
        first.wait()
        second.wait()

    run_ranks(quiet, 2)
    assert {event.call for event in ledger().events} == {2}


def test_what_goes_wrong_on_the_thread_is_raised_by_wait():
    from course_lib.comm import background

    def fails():
        call = background.submit(lambda: 1 / 0)
        background.finish_all()  # says nothing
        call.wait()

    with pytest.raises(RankError, match="all ranks failed .*ZeroDivisionError"):
        run_ranks(fails, 2)
    assert run_ranks(calls_follow_one_another, 2) == [([4.0] * 3, 1)] * 2


def test_unequal_calls_are_refused_at_the_launch():
    def unequal():
        comm.all_reduce_(torch.ones(4 + dist.get_rank()), async_op=True).wait()

    with pytest.raises(RankError, match="all ranks failed .*ValueError: all_reduce: length is 4 on rank 0 and 5 on"):
        run_ranks(unequal, 2)


@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_a_rank_that_waits_for_its_thread_is_reported(algorithm):
    def one_does_not_come():
        with comm.settings(guard=False):
            if dist.get_rank() != 1:
                comm.all_reduce_(torch.ones(4), algorithm=algorithm, async_op=True).wait()
            else:
                time.sleep(60)

    with pytest.raises(RankTimeout, match=r"ranks 0, 2 wait in all_reduce_ #1, line \d+ of .*; rank 1 still runs at"):
        run_ranks(one_does_not_come, 3, timeout=1)
    assert run_ranks(calls_follow_one_another, 2) == [([4.0] * 3, 1)] * 2


def test_a_call_behind_a_stuck_thread_is_reported():
    def behind():
        with comm.settings(guard=False):
            if dist.get_rank() == 0:
                handle = comm.all_reduce_(torch.ones(4), async_op=True)
                comm.all_reduce(torch.ones(4))
                handle.wait()
            else:
                time.sleep(60)

    with pytest.raises(RankTimeout, match=r"rank 0 waits in all_reduce #2, line \d+ of"):
        run_ranks(behind, 2, timeout=1)


def test_an_aborted_call_does_not_hold_up_the_next_cell():
    """Both ranks fail alike while rank 0's thread waits for a call that rank 1 never makes: the pool is kept."""

    def both_fail():
        with comm.settings(guard=False):
            handle = comm.all_reduce_(torch.ones(4), async_op=True) if dist.get_rank() == 0 else None
            try:
                raise KeyError("boom")
            finally:
                if handle is not None:
                    handle._finish = None

    pids = run_ranks(lambda: __import__("os").getpid(), 2)
    with pytest.raises(RankError, match="all ranks failed .*KeyError: 'boom'"):
        run_ranks(both_fail, 2)
    assert run_ranks(lambda: __import__("os").getpid(), 2) == pids
    assert [sums for sums, _ in run_ranks(calls_follow_one_another, 2)] == [[4.0] * 3] * 2


LENGTH, SLOWDOWN = 40_000, 300
MESSAGE_S = comm_time("all_reduce", "ring", world_size=4, length=LENGTH, itemsize=4).time_s(TOY)


def two_streams(compute_s, calls):
    """Launch, compute, wait; return this rank's real seconds."""
    with comm.emulated(EmulatedClock(inside=TOY, slowdown=SLOWDOWN)):
        started = time.monotonic()
        handles = [comm.all_reduce_(torch.ones(LENGTH), async_op=True) for _ in range(calls)]
        comm.compute(compute_s, "backward")
        for handle in handles:
            handle.wait()
        comm.compute(10e-6, "optimizer")
        return time.monotonic() - started


@pytest.mark.parametrize("compute_s", [0.5 * MESSAGE_S, 3 * MESSAGE_S], ids=["longer message", "longer compute"])
def test_computing_and_communication_pass_at_the_same_time(compute_s):
    real_s = run_ranks(two_streams, 4, compute_s, 2)
    expected = max(compute_s, 2 * MESSAGE_S) + 10e-6
    assert ledger().span_s == pytest.approx(expected, rel=0.1)
    assert max(real_s) > 0.9 * SLOWDOWN * expected  # the time really passes
    optimizer = [event.start_s for event in ledger().of("optimizer").events]
    assert optimizer == pytest.approx([expected - 10e-6] * 4, rel=0.1)


def test_what_nobody_waited_for_ends_under_its_clock():
    def left_behind():
        x = torch.ones(LENGTH)
        with comm.emulated(EmulatedClock(inside=TOY, slowdown=SLOWDOWN)):
            comm.all_reduce_(x, async_op=True)
        return x.unique().tolist()

    assert run_ranks(left_behind, 4) == [[4.0]] * 4
    assert ledger().emulated and ledger().span_s == pytest.approx(MESSAGE_S, rel=0.1)


def test_a_call_starts_no_earlier_than_its_launch():
    def late():
        with comm.emulated(EmulatedClock(inside=TOY, slowdown=SLOWDOWN)):
            comm.compute(100e-6)
            handle = comm.all_reduce_(torch.ones(LENGTH), async_op=True)
            comm.compute(50e-6)
            comm.all_reduce(torch.ones(4))  # waits for the one in the background
            handle.wait()

    run_ranks(late, 4)
    first, second = ([event for event in ledger().events if event.call == number] for number in (1, 2))
    assert min(event.start_s for event in first if event.kind == "send") == pytest.approx(100e-6, rel=1e-3)
    assert min(event.start_s for event in second) >= max(event.end_s for event in first) > 150e-6


def named():
    """The default group by its name: in the background while the main thread makes a native call of its own."""
    summed = torch.ones(10_000)
    work = comm.all_reduce_(summed, group=dist.group.WORLD, async_op=True)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dist.get_rank())
    work.wait()
    comm.all_reduce(torch.ones(2), group=dist.group.WORLD)
    return everyone, summed[0].item()


def test_naming_the_default_group_is_the_same_as_naming_none():
    """PyTorch watches that group: a message of ours on it would make its next collective fail."""
    for _ in range(3):
        assert run_ranks(named, 4) == [([0, 1, 2, 3], 4.0)] * 4
