"""A script on several processes: told who it is as torchrun tells it, and ended when the others cannot go on."""

from __future__ import annotations

import os
import time

import pytest

from course_lib.ranks.script import run_script
from tests.ranks.deadlines import at_most

WHO = """
import os
print(*(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")), __name__)
"""
ONE_FAILS = """
import os, sys, time
print("before")
if os.environ["RANK"] == "1":
    sys.exit("no more")
time.sleep(60)
"""


LISTENS = """
import os, re
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
port = f"{int(os.environ['MASTER_PORT']):04X}"
for path in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(path):
        fields = line.split()
        if fields[1].endswith(f":{port}") and fields[3] == "0A":
            print(fields[1].split(":")[0])
dist.barrier()
dist.destroy_process_group()
"""


def test_each_process_is_told_who_it_is():
    ended = run_script(WHO, 3, timeout=200)
    assert [one.printed.strip() for one in ended] == [f"{rank} {rank} 3 3 __main__" for rank in range(3)]
    assert [(one.status, one.problems) for one in ended] == [(0, "")] * 3


def test_nobody_outside_this_machine_reaches_the_store_at_which_they_meet():
    ended = run_script(LISTENS, 2, timeout=200)
    assert [(one.status, one.printed.split()) for one in ended] == [(0, ["0100007F"])] * 2, ended  # 127.0.0.1


def test_who_only_waits_for_one_that_failed_is_ended_soon_and_what_it_printed_is_kept():
    started = time.monotonic()
    ended = run_script(ONE_FAILS, 3, timeout=200)
    assert time.monotonic() - started < at_most(30)
    assert [one.status for one in ended] == [None, 1, None]
    assert [one.printed for one in ended] == ["before\n"] * 3 and ended[1].problems == "no more\n"
    for one in ended:
        with pytest.raises(ProcessLookupError):
            os.kill(one.pid, 0)
