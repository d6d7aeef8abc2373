"""A job that hangs is asked by address alone: its flight recorder, by way of torch's debug server."""

from __future__ import annotations

import socket
import subprocess
import sys

from tools.paths import ROOT

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


def test_the_debug_server_tells_in_which_call_ranks_part(tmp_path):
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, str(tmp_path / "job.py"), str(port)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "call" in line] == [
        "ranks part in call 2",
        "  call 2, rank 0: all_reduce of [[3]], waits",
        "  call 2, rank 1: broadcast of [[3]], waits",
    ]
