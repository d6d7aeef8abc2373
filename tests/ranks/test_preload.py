"""What ranks find in memory when they are forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import torch

from course_lib.ranks import run_ranks, shutdown

LOAD = """
from multiprocessing import forkserver
from IPython.core.interactiveshell import InteractiveShell
assert forkserver._forkserver._forkserver_pid is None
InteractiveShell.instance().run_line_magic("load_ext", "course_lib")
assert forkserver._forkserver._forkserver_pid
"""


def imported_by_an_optimizer():
    """How many modules the first optimizer of this rank had to import."""
    before = len(sys.modules)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    return len(sys.modules) - before


def test_ranks_that_are_forked_later_need_not_import_what_an_optimizer_needs():
    run_ranks(int, 2)  # the fork server runs
    deadline = time.monotonic() + 60
    while any(run_ranks(imported_by_an_optimizer, 2)):
        assert time.monotonic() < deadline, "each pool imports for itself"
        shutdown()
        time.sleep(1)


def test_an_alarm_in_a_rank_is_the_rank_s_own():
    assert run_ranks(lambda: signal.getsignal(signal.SIGALRM), 2) == [signal.SIG_DFL] * 2


def test_the_fork_server_starts_with_the_extension_before_the_first_cell():
    run = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_ranks_have_the_environment_of_their_start_not_of_the_fork_server_s(monkeypatch):
    run_ranks(int, 2)
    shutdown()
    monkeypatch.setenv("SET_AFTER_THE_FORK_SERVER_STARTED", "yes")
    assert run_ranks(lambda: os.environ.get("SET_AFTER_THE_FORK_SERVER_STARTED"), 2) == ["yes", "yes"]
    shutdown()
