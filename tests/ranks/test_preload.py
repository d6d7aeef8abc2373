"""What ranks find in memory when they are forked."""

from __future__ import annotations

import signal
import sys
import time

import torch

from course_lib.ranks import run_ranks, shutdown


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
