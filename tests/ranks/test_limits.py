"""A call ends at its limit, whatever a rank does in the middle of a message; what a start needs is asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch.distributed as dist

from course_lib.ranks import RankTimeout, run_ranks
from tests.ranks.deadlines import at_most

ROOT = Path(__file__).parents[2]
MEGABYTE = 10**6


def timed_out(limit, function, *args):
    started = time.monotonic()
    with pytest.raises(RankTimeout) as caught:
        run_ranks(function, 2, *args, timeout=limit)
    assert time.monotonic() - started < limit + at_most(3)
    return str(caught.value)


def test_a_stopped_rank_and_a_long_argument():
    os.kill(run_ranks(os.getpid, 2)[1], signal.SIGSTOP)
    message = timed_out(0.5, len, bytes(20 * MEGABYTE))
    assert "rank 1 had not taken all of its task, 1" in message  # a few hundred KiB fit into the wire
    assert "MiB were left; did not answer" in message


def test_a_rank_that_stops_in_the_middle_of_a_long_print():
    def print_until_stopped(other):
        if dist.get_rank() == 0:
            time.sleep(0.2)
            os.kill(other, signal.SIGSTOP)
        while dist.get_rank() == 1:
            print("x" * 20 * MEGABYTE)

    other = run_ranks(os.getpid, 2)[1]
    assert "rank 1 did not answer: its process was stopped by a signal" in timed_out(0.7, print_until_stopped, other)


def test_a_result_that_takes_longer_than_the_limit():
    message = timed_out(0.1, lambda: bytes(300 * MEGABYTE if dist.get_rank() == 1 else 1))
    assert "rank 1 " in message and message.count("rank 0") == message.count("rank 0 has finished") == 1


def test_a_result_that_takes_long_to_pack_is_no_line_of_the_learner_s():
    def endless():
        class Endless:
            def __reduce__(self):
                return list, (), None, iter(partial(time.sleep, 0), 1)  # lets the rank's other threads run

        return Endless()

    message = timed_out(0.5, endless)
    assert message.startswith(
        "not finished after 0.5 s: ranks 0, 1 still run outside the learner's code, packing what came out; all "
    )


@pytest.mark.parametrize("limit", [float("inf"), 1e308])
def test_a_limit_may_be_infinite(limit):
    assert run_ranks(dist.get_rank, 2, timeout=limit) == [0, 1]


@pytest.mark.parametrize("limit", [None, 0, -1.0, float("nan"), "30"])
def test_what_is_no_limit_is_said_in_four_parts(limit):
    with pytest.raises(ValueError) as refused:
        run_ranks(dist.get_rank, 2, timeout=limit)
    assert str(refused.value) == (
        f"run_ranks: timeout={limit!r}; a time limit is a number of seconds above 0; "
        'write timeout=30, or timeout=float("inf") to wait without one'
    )


def test_a_fork_server_that_was_stopped_starts_ranks_again():
    run_ranks(int, 1)
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)
    assert run_ranks(int, 2) == [0, 0]


def test_a_long_result_and_a_long_argument_arrive_whole():
    content = os.urandom(5 * MEGABYTE)
    assert run_ranks(lambda given: given, 2, content) == [content] * 2


DIE = """
import os, torch, torch.distributed as dist
from course_lib.ranks import RankError, run_ranks
try:
    run_ranks(lambda: os.kill(os.getpid(), 9) if dist.get_rank() else dist.all_reduce(torch.ones(1)), 2)
except RankError as error:
    print(str(error)[:11])
"""


def run_script(code, **environment):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment})


def test_what_gloo_says_of_a_lost_rank_is_left_to_the_report():
    ran = run_script(DIE)
    assert (ran.stdout, ran.stderr) == ("rank 1 died\n", "")


def test_a_temporary_folder_with_too_long_a_path_is_one_line(tmp_path):
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    ran = run_script(DIE, TMPDIR=str(folder))
    last = ran.stderr.splitlines()[-1]
    assert last.startswith(f"OSError: ranks: AF_UNIX path too long (in {folder}); ")
    assert last.endswith("set TMPDIR to another folder, with a short path")
