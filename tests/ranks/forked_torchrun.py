"""torchrun itself, forked from the ranks' server and forking its own: no process imports what the server has imported.

Started the usual way, torchrun and each of its ranks import for one to four seconds before a script begins.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import traceback
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torch.distributed import run
from torch.distributed.launcher.api import elastic_launch

from course_lib.ranks import server
from course_lib.ranks.member import blank_main

STANDALONE = "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"
server.preload(__name__)


@contextmanager
def started(ranks, *script, cwd, **variables):
    """The process of `torchrun script …` or `torchrun -m module …`, killed at the end if it still runs.

    It writes to the files `out` and `err` in `cwd`.
    """
    server.start_fork_server()
    options = [*STANDALONE, "--start-method=fork", f"--nproc-per-node={ranks}", *map(str, script)]
    for name in ("out", "err"):
        (cwd / name).write_text("")
    process = multiprocessing.get_context("forkserver").Process(target=_torchrun, args=(options, cwd, variables))
    with blank_main():
        process.start()
    try:
        yield process
    finally:
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def _torchrun(options, cwd, variables):
    server.forget_fork_server()
    os.setpgid(0, 0)
    os.chdir(cwd)
    os.environ.update(variables)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY), number)
    args = run.parse_args(options)
    config, *_ = run.config_from_args(args)
    run_it = partial(runpy.run_module, alter_sys=True) if args.module else runpy.run_path
    elastic_launch(config, _rank)(run_it, [args.training_script, *args.training_script_args])


def _rank(run_it, words):
    """The script runs in a process of its own, for it may end that at once."""
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    status, sys.argv = 1, words
    try:
        run_it(words[0], run_name="__main__")
        status = _gloo_is_left()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


def _gloo_is_left():
    """Whether threads are alive that may abort Python while it ends; then that is said."""
    left = sum("gloo_runloop" in name.read_text() for name in Path("/proc/self/task").glob("*/comm"))
    if left:
        sys.stderr.write(f"{left} of gloo's threads are alive while Python ends; they may abort it")
    return int(left > 0)
