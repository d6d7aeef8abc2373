"""What ranks find in memory when they are forked."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

import pytest
import torch

from course_lib.ranks import run_ranks, shutdown
from tools.paths import ROOT

LOAD = """
from multiprocessing import forkserver
from IPython.core.interactiveshell import InteractiveShell
assert forkserver._forkserver._forkserver_pid is None
InteractiveShell.instance().run_line_magic("load_ext", "course_lib")
assert forkserver._forkserver._forkserver_pid
"""


def imported_by_training():
    """What this rank had to import for its first optimizer, and for its first climb."""
    before = set(sys.modules)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    from course_lib.verify import assert_parallel_equals  # noqa: F401

    return sorted(set(sys.modules) - before)


def test_no_rank_has_to_import_what_training_needs():
    shutdown()
    assert run_ranks(imported_by_training, 2) == [[], []]


def garbage():
    """Whether it is collected here, and whether what was imported is passed over."""
    return gc.isenabled(), gc.get_freeze_count() > 100_000


def test_garbage_is_collected_wherever_code_of_others_runs_and_no_longer_looked_for_in_what_was_imported():
    assert [*run_ranks(garbage, 2), garbage()[0]] == [(True, True), (True, True), True]


def test_a_program_may_name_what_its_ranks_need_besides(tmp_path):
    (tmp_path / "needed.py").write_text("import os\nHOME = os.getpid()\n")
    program = (
        "from course_lib.ranks import run_ranks, server\n"
        "server.preload('needed')\n"
        "print(len(set(run_ranks(lambda: __import__('needed').HOME, 3))))\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("1\n", "")


def test_an_alarm_in_a_rank_is_the_rank_s_own():
    assert run_ranks(lambda: signal.getsignal(signal.SIGALRM), 2) == [signal.SIG_DFL] * 2


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux can be told")
def test_no_rank_interrupts_another_one_that_computes():
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert run_ranks(lambda: os.sched_getscheduler(0), 2) == [os.SCHED_BATCH] * 2


def test_the_fork_server_starts_with_the_extension_before_the_first_cell():
    run = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_ranks_have_the_environment_of_their_start_not_of_the_fork_server_s(monkeypatch):
    run_ranks(int, 2)
    shutdown()
    monkeypatch.setenv("SET_AFTER_THE_FORK_SERVER_STARTED", "yes")
    assert run_ranks(lambda: os.environ.get("SET_AFTER_THE_FORK_SERVER_STARTED"), 2) == ["yes", "yes"]
    shutdown()
