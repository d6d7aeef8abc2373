"""torchrun as people start it; what its processes write goes to files, and what gloo leaves behind is said there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import psutil

AT_THE_END = """
import atexit, pathlib, sys
def gloo_is_left():
    left = sum("gloo_runloop" in name.read_text() for name in pathlib.Path("/proc/self/task").glob("*/comm"))
    left and sys.stderr.write(f"{left} of gloo's threads are alive while Python ends; they may abort it")
atexit.register(gloo_is_left)
"""


def command(ranks, *script):
    """What starts so many ranks on this machine."""
    run = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [sys.executable, "-m", *run, *map(str, script)]


@contextmanager
def started(ranks, *script, cwd, **variables):
    """The process of `torchrun script …`, killed with all of its own at the end if it still runs.

    It writes to the files `out` and `err` in `cwd`.
    """
    (cwd / "sitecustomize.py").write_text(AT_THE_END)
    environment = {**os.environ, "PYTHONPATH": str(cwd), "OMP_NUM_THREADS": "1", **variables}
    with (cwd / "out").open("w") as out, (cwd / "err").open("w") as err:
        process = subprocess.Popen(command(ranks, *script), stdout=out, stderr=err, cwd=cwd, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            theirs = psutil.Process(process.pid).children(recursive=True)
            for one in (process, *theirs):
                one.kill()
            psutil.wait_procs(theirs)
        process.wait()
