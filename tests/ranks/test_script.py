"""A script on several processes: told who it is as torchrun tells it, and ended when the others cannot go on."""

from __future__ import annotations

import os
import signal
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


def test_each_process_computes_on_one_thread_as_under_torchrun():
    ended = run_script("import torch; print(torch.get_num_threads())", 2, timeout=200)
    assert [one.printed for one in ended] == ["1\n"] * 2


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


COUNTED = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
x = torch.ones(3)
dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
dist.all_reduce(x)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(1, 4)).sum().backward()
dist.all_gather([torch.empty(3) for _ in range(2)], x)
"""


def test_every_call_is_counted_with_its_bytes_and_its_line_whoever_makes_it():
    ended = run_script(COUNTED, 2, timeout=200)
    assert [one.status for one in ended] == [0, 0]
    for one, in_pairs in zip(ended, ("send", "recv"), strict=True):
        mine = [tuple(call)[:4] for call in one.calls if call.line != 8]  # DDP's own first exchange
        assert mine == [
            (in_pairs, 12, 2, 6),
            ("all_reduce", 12, 2, 7),
            ("all_reduce", 40, 2, 9),
            ("all_gather", 12, 2, 10),
        ]


def test_a_hang_has_left_the_call_in_which_each_waits():
    waits = COUNTED.partition("model =")[0] + "dist.barrier() if dist.get_rank() else input"
    ended = run_script(waits + "\nimport time; time.sleep(60)", 2, timeout=6)
    assert [one.status for one in ended] == [None, None]
    assert [one.calls[-1].operation for one in ended] == ["all_reduce", "barrier"]


def test_a_script_is_given_its_argument():
    ended = run_script("import sys; print(sys.argv[1:])", 1, timeout=200, argument="a folder")
    assert ended[0].printed == "['a folder']\n"


def test_each_process_has_one_thread_as_where_torchrun_starts_several():
    assert run_script("import torch; print(torch.get_num_threads())", 1, timeout=200)[0].printed == "1\n"


KEPT = """
import torch
w = torch.ones(10, 10, requires_grad=True)
def forward(x):  # keeps the weights, 800 B in float64, x and what tanh gives, 80 B each
    return (x @ w.double()).tanh()
first = forward(torch.ones(1, 10).double().requires_grad_())
second = forward(torch.ones(1, 10).double().requires_grad_())
del second
third = forward(torch.ones(1, 10).double().requires_grad_())
(first + third).sum().backward()
"""


def test_what_autograd_keeps_is_counted_at_its_most_and_only_if_asked():
    assert run_script(KEPT, 1, timeout=200)[0].saved == 0
    assert run_script(KEPT, 1, timeout=200, saved=True)[0].saved == 2 * (800 + 2 * 80)


SHARED = """
import torch
w = torch.nn.Linear(10, 10, bias=False)
outs = [w(torch.ones(1, 10).requires_grad_()).exp() for _ in range(3)]
"""


def test_a_weight_is_counted_once_however_many_forwards_have_kept_it():
    assert run_script(SHARED, 1, timeout=200, saved=True)[0].saved == 400 + 3 * (40 + 40)


GROUPS = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rows = [dist.new_group([2 * i, 2 * i + 1]) for i in range(2)]
columns = [dist.new_group([j, j + 2]) for j in range(2)]
dist.all_reduce(torch.ones(3), group=rows[dist.get_rank() // 2])
dist.all_reduce(torch.ones(3), group=columns[dist.get_rank() % 2])
"""


def test_a_call_tells_along_which_axis_it_went():
    ended = run_script(GROUPS, 4, timeout=200)
    assert [[call.members for call in one.calls] for one in ended] == [
        ["0, 1", "0, 2"],
        ["0, 1", "1, 3"],
        ["2, 3", "0, 2"],
        ["2, 3", "1, 3"],
    ]


WAITS = """
import torch
import torch.distributed as dist
from time import perf_counter
from torch.distributed import _functional_collectives as functional
dist.init_process_group("gloo")
x = torch.ones(3)
def began(): return dist.all_reduce(x, async_op=True)
def polled(work):
    while not work.is_completed():
        pass
for wait in (
    lambda: dist.all_reduce(x),
    lambda: began().wait(),
    lambda: began().get_future().wait(),
    lambda: polled(began()),
    lambda: functional.all_reduce(x, "sum", dist.group.WORLD).wait(),
    lambda: began(),
):
    start = perf_counter()
    work = wait()
    print(start, perf_counter())
"""


def test_the_end_of_each_wait_is_noted_whichever_way_a_script_waits():
    for one in run_script(WAITS, 2, timeout=200):
        assert one.status == 0, one.problems
        looks = [tuple(map(float, line.split())) for line in one.printed.splitlines()]
        found = [any(start < moment < end for moment in one.waits) for start, end in looks]
        assert found == [True] * 5 + [False]
        assert all(start < call.began < end for call, (start, end) in zip(one.calls, looks, strict=True))


ROWS = """
import torch
from torch.utils.checkpoint import checkpoint
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
model(torch.ones(3, 4))
checkpoint(model, torch.ones(2, 4).requires_grad_(), use_reentrant=False).sum().backward()
with torch.no_grad():
    model(torch.ones(7, 4))
model[0](torch.ones(0, 4))
torch.nn.CrossEntropyLoss()(model[0](torch.ones(5, 2, 4)).mean(1), torch.ones(5).long())
"""


def test_the_rows_of_each_forward_that_learns_are_those_of_the_layer_that_is_given_most():
    assert run_script(ROWS, 1, timeout=200)[0].rows == (3, 2, 2, 0, 10)


DIES = """
import os, subprocess, sys, time
folder, rank = sys.argv[1], os.environ["RANK"]
beside = subprocess.Popen(["sleep", "600"])
print(beside.pid)
try:
    for step in range(1, 5):
        time.sleep(0.2 * int(rank))
        print("step", step)
        sys.audit("train.step", step)
finally:
    open(f"{folder}/ended{rank}", "w").close()
"""


def test_all_are_killed_in_the_same_step_with_what_they_have_started_and_are_told_nothing(tmp_path):
    ended = run_script(DIES, 3, timeout=200, argument=str(tmp_path), killed_in=3)
    assert [one.status for one in ended] == [-signal.SIGKILL] * 3 and not list(tmp_path.iterdir())
    for one in ended:
        beside, *steps = one.printed.splitlines()
        assert steps == ["step 1", "step 2", "step 3"]
        with pytest.raises(ProcessLookupError):  # killed, and waited for by whoever has adopted it
            while True:
                os.kill(int(beside), 0)
                time.sleep(0.01)


def test_nobody_watches_a_step_if_it_is_not_asked_for():
    ended = run_script("import sys; sys.audit('train.step', 3)", 2, timeout=200)
    assert [one.status for one in ended] == [0, 0]


def test_who_ends_before_the_step_is_not_killed_and_the_others_do_not_wait_for_it():
    early = "import os, sys; os.environ['RANK'] == '1' and sys.audit('train.step', 3); sys.exit(0)"
    started = time.monotonic()
    ended = run_script(early, 2, timeout=200, killed_in=3)
    assert [one.status for one in ended] == [0, -signal.SIGKILL] and time.monotonic() - started < at_most(30)
