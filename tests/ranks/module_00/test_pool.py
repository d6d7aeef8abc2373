"""The promises of `run_ranks`, each on real processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.ranks import RankError, RankTimeout, ledger, run_ranks, shutdown
from course_lib.ranks.tasks import typed_sources
from tests.ranks.deadlines import at_most

ROOT = Path(__file__).parents[3]


def sum_of_ranks():
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total)
    return dist.get_rank(), os.getpid(), int(total)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 16])
def test_results_come_in_rank_order_from_distinct_processes(world_size):
    results = run_ranks(sum_of_ranks, world_size)
    ranks, pids, sums = zip(*results, strict=True)
    assert ranks == tuple(range(world_size))
    assert len({*pids, os.getpid()}) == world_size + 1
    assert set(sums) == {sum(range(world_size))}


def test_arguments_closures_and_tensors_travel():
    scale = 3
    results = run_ranks(lambda x, k: x * k * scale + dist.get_rank(), 2, torch.arange(3), 2)
    assert [result.tolist() for result in results] == [[0, 6, 12], [1, 7, 13]]


def test_a_function_may_say_dist_and_config():
    """cloudpickle takes torch.distributed.config along, a module of a class that nobody can import."""
    assert run_ranks(lambda x: (dist.get_rank(), x.config), 2, SimpleNamespace(config=5)) == [(0, 5), (1, 5)]


def test_the_pool_is_kept_between_runs():
    first = [pid for _, pid, _ in run_ranks(sum_of_ranks, 3)]
    assert [pid for _, pid, _ in run_ranks(sum_of_ranks, 3)] == first


def test_a_profiler_on_the_ranks_prints_no_lines_of_its_own():
    """They go straight to the kernel's stderr, where no rank's output is collected."""
    assert run_ranks(lambda: os.environ["KINETO_LOG_LEVEL"], 1) == [os.environ.get("KINETO_LOG_LEVEL", "6")]


def test_ranks_talk_within_this_machine():
    """Neither a network nor a host name that resolves is needed."""
    assert run_ranks(lambda: os.environ["GLOO_SOCKET_IFNAME"][:2], 1) == ["lo"]


def test_output_is_one_block_in_rank_order(capsys):
    def speak():
        time.sleep(0.05 * (2 - dist.get_rank()))
        print(f"hello\nfrom {dist.get_rank()}")

    run_ranks(speak, 3)
    expected = [f"rank {rank} │ {line}" for rank in range(3) for line in ("hello", f"from {rank}")]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_stream_of_few_letters_loses_no_result():
    code = "from course_lib.ranks import run_ranks; print(run_ranks(lambda: print('é') or 7, 1))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0 and ran.stdout.splitlines()[-1] == "[7]" and "xe9" in ran.stdout


@pytest.mark.parametrize(
    ("interface", "said"), [("eth7", "no address on the network interface 'eth7'; .*GLOO_SOCKET_IFNAME.*; unset that")]
)
def test_an_interface_that_is_not_there_is_named_with_its_variable(monkeypatch, interface, said):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    shutdown()
    with pytest.raises(RankError, match=said):
        run_ranks(sum_of_ranks, 2)


def test_a_rank_that_raises_is_named_and_the_waiting_are_released():
    def one_raises():
        if dist.get_rank() == 1:
            raise KeyError("boom")
        dist.all_reduce(torch.ones(1))

    started = time.monotonic()
    with pytest.raises(RankError, match=r"^rank 1 failed at line \d+ of test_pool.py.*KeyError: 'boom'") as caught:
        run_ranks(one_raises, 4)
    assert time.monotonic() - started < at_most(3 * 1.5)
    assert (caught.value.rank, caught.value.kind) == (1, "raised")
    assert "ranks 0, 2, 3 wait in all_reduce" in str(caught.value)
    assert len(run_ranks(sum_of_ranks, 4)) == 4


def test_an_error_on_all_ranks_keeps_the_processes():
    before = [pid for _, pid, _ in run_ranks(sum_of_ranks, 2)]
    with pytest.raises(RankError, match="all ranks failed .*ZeroDivisionError"):
        run_ranks(lambda: 1 / 0, 2)
    assert [pid for _, pid, _ in run_ranks(sum_of_ranks, 2)] == before


class HalfMade:
    """As a module that failed before its first attribute: asking for one asks for another."""

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def fail(self):
        raise ValueError("half made")


def test_an_error_in_a_half_made_object_is_told_as_any_other():
    with pytest.raises(RankError, match="all ranks failed at line .*: ValueError: half made"):
        run_ranks(lambda: HalfMade().fail(), 2)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_blamed_not_its_neighbours(victim):
    def one_dies():
        if dist.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    with pytest.raises(RankError, match=f"^rank {victim} died") as caught:
        run_ranks(one_dies, 4)
    assert (caught.value.rank, caught.value.kind) == (victim, "died")
    assert len(run_ranks(sum_of_ranks, 4)) == 4


def test_a_killed_rank_is_noticed_though_its_child_lives_on():
    def leave_a_child():
        if dist.get_rank() == 1:
            if os.fork() == 0:
                time.sleep(5)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    with pytest.raises(RankError, match="^rank 1 died"):
        run_ranks(leave_a_child, 2, timeout=4)


def test_no_rank_needs_shared_memory():
    """Systems without /dev/shm lose nothing: no rank maps or opens anything there."""

    def shared_files():
        files = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        ]
        return [name for name in [*files, Path("/proc/self/maps").read_text()] if "/dev/shm" in name]

    assert run_ranks(lambda: (dist.all_reduce(torch.ones(10**6)), shared_files())[1], 2) == [[], []]


def test_a_deadlock_is_explained_soon_after_the_limit():
    def deadlock():
        if dist.get_rank() == 2:
            dist.recv(torch.ones(1), src=1)
        else:
            comm.all_reduce(torch.ones(1))

    started = time.monotonic()
    with pytest.raises(RankTimeout) as caught:
        run_ranks(deadlock, 4, timeout=1)
    assert time.monotonic() - started < 1 + at_most(2)
    message = str(caught.value)
    assert "ranks 0, 1, 3 wait in all_reduce #1, line " in message
    assert "rank 2 waits in recv from 1, line " in message
    assert len(run_ranks(sum_of_ranks, 4)) == 4


def test_an_endless_loop_is_found_by_its_line():
    def spin():
        while dist.get_rank() == 1:
            pass

    with pytest.raises(RankTimeout, match=r"rank 1 still runs at line \d+ of test_pool.py"):
        run_ranks(spin, 2, timeout=0.5)


def test_a_rank_that_holds_the_interpreter_lock_is_found_too():
    def hold_the_lock():
        ctypes.PyDLL(None).sleep(20)  # PyDLL calls without releasing the lock

    with pytest.raises(RankTimeout, match=r"rank 0 still runs at line \d+ of test_pool.py"):
        run_ranks(hold_the_lock, 1, timeout=0.5)


@pytest.mark.parametrize("world_size", [0, -1, 33, 2.0, "4"])
def test_an_illegal_world_size_is_one_line(world_size):
    with pytest.raises(ValueError, match="ranks: world_size=.*; a pool has 1 to 32 ranks; choose"):
        run_ranks(sum_of_ranks, world_size)


def test_mismatched_native_collectives_raise_instead_of_aborting():
    def mismatch():
        dist.all_reduce(torch.ones(1 + dist.get_rank()))

    with pytest.raises(RankError, match=r"all_reduce: shape is \(1,\) on rank 0 and \(2,\) on rank 1; all ranks"):
        run_ranks(mismatch, 2)
    assert len(run_ranks(sum_of_ranks, 2)) == 2


def test_the_ledger_holds_the_last_run_of_all_ranks():
    run_ranks(lambda: comm.all_reduce(torch.ones(8), algorithm="ring"), 4)
    assert {event.rank for event in ledger().events} == {0, 1, 2, 3}
    run_ranks(sum_of_ranks, 4)
    assert not [event for event in ledger().events if event.kind == "send"]


def four_times_rank():
    return 4 * dist.get_rank()


def test_the_same_function_runs_under_torchrun():
    run = torchrun("tests.ranks.module_00.test_pool:four_times_rank")
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["rank 0 → 0", "rank 1 → 4"]


def test_torchrun_without_a_function_is_one_line():
    command = [sys.executable, "-m", "course_lib.ranks", "nowhere"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr == "course_lib.ranks: got nowhere; one argument names a function; write module:function\n"


def torchrun(name):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run([*command, "-m", "course_lib.ranks", name], cwd=ROOT, capture_output=True, text=True)


def test_a_task_does_not_carry_the_tasks_before_it():
    before = typed_sources()
    for _ in range(3):
        run_ranks(int, 2)
    assert typed_sources() == before
