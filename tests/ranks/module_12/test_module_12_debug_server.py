"""A job that hangs is asked by address alone: its flight recorder, by way of torch's debug server."""

from __future__ import annotations

import socket

from course_lib.ranks.script import run_script

JOB = """
import os, subprocess, sys, torch
import torch.distributed as dist
from torch.distributed.debug import start_debug_server, stop_debug_server
dist.init_process_group("gloo")
start_debug_server(port=int(sys.argv[1]))
rank, x = dist.get_rank(), torch.ones(3)
dist.all_reduce(x)
# Both wait for ever, as they would without async_op.
waiting = dist.all_reduce(x, async_op=True) if rank == 0 else dist.broadcast(x, 0, async_op=True)
store = dist.distributed_c10d._get_default_store()
store.set(f"called {rank}", "")
store.wait(["called 0", "called 1"])
if rank == 0:
    ask = [sys.executable, "-m", "course_lib.gauges.flight", f"localhost:{sys.argv[1]}"]
    subprocess.run(ask, check=True)
    stop_debug_server()
    store.set("told", "")
store.wait(["told"])
os._exit(0)
"""


def test_the_debug_server_tells_in_which_call_ranks_part():
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    first, second = run_script(JOB, 2, timeout=120, argument=str(port))
    assert (first.status, second.status) == (0, 0), first.problems + second.problems
    assert [line for line in first.printed.splitlines() if "call" in line] == [
        "ranks part in call 2; unlike most: 1",
        "  call 2, rank 0: all_reduce of [[3]], waits",
        "  call 2, rank 1: broadcast of [[3]], waits",
    ]
