"""One torchrun for many scripts: its process imports once what these import and forks ranks, and they the scripts.

A script's process reads, writes and ends as it would alone; who forks has one thread, or refuses. As at a restart by
torchrun, every script meets at a store of its own, and ranks may be left out. So torchrun itself starts one process,
whose variables the ranks have, each with its own number.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path

import torchrun

READY_S = 300


class KeptTorchrun:
    """So many ranks that wait for scripts to run."""

    def __init__(self, ranks):
        self.ranks = ranks

    def first(self, ranks):
        """So many of them."""
        return KeptTorchrun(self.ranks[:ranks])

    @contextmanager
    def started(self, script, *args, cwd, **variables):
        """The processes of `torchrun script …`, killed at the end if they still run.

        They write to the files `out` and `err` in `cwd`.
        """
        from torch.distributed import TCPStore  # torchrun's own would have the keys of the script before

        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        for name in ("out", "err"):
            (cwd / name).write_text("")
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(len(self.ranks)))
        for rank in self.ranks:
            asked = (str(script), *map(str, args)), str(cwd), {**sizes, **variables, "MASTER_PORT": str(store.port)}
            rank.send(asked)
        run = Run(self.ranks)
        try:
            yield run
        finally:
            run.kill()


class Run:
    """A script's processes, one for each rank."""

    def __init__(self, ranks):
        self.pids = {rank: rank.recv() for rank in ranks}
        self.statuses = {}

    def wait(self, seconds):
        """Each rank's exit status, or None if it still runs; who fails ends the wait."""
        until = time.monotonic() + seconds
        while (running := self.pids.keys() - self.statuses.keys()) and not any(self.statuses.values()):
            ended = wait(running, max(until - time.monotonic(), 0))
            if not ended:
                break
            self.statuses |= {rank: rank.recv() for rank in ended}
        return [self.statuses.get(rank) for rank in self.pids]

    def say_where(self):
        """Let each that still runs write to `err` where it is; its interpreter need not answer for that."""
        for rank in self.pids.keys() - self.statuses.keys():
            os.kill(self.pids[rank], signal.SIGUSR1)
        time.sleep(1)

    def kill(self):
        """End all that still run, at once."""
        running = self.pids.keys() - self.statuses.keys()
        for rank in running:
            with suppress(ProcessLookupError):  # it has ended meanwhile, and its status is under way
                os.kill(self.pids[rank], signal.SIGKILL)
        self.statuses |= {rank: rank.recv() for rank in running}


@contextmanager
def kept(ranks, scripts, **variables):
    """A torchrun of so many ranks that have imported what these scripts import."""
    with ExitStack() as stack:
        cwd = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="t")))  # a socket's path is short
        path = cwd / "ranks"
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(path))
        server.listen()
        server.settimeout(READY_S)
        stack.enter_context(torchrun.started(1, __file__, path, ranks, *scripts, cwd=cwd, **variables))
        connections = [stack.enter_context(Connection(server.accept()[0].detach())) for _ in range(ranks)]
        yield KeptTorchrun(sorted(connections, key=lambda rank: rank.recv()))


def serve(path, ranks, *scripts):
    """Import, be so many ranks, and end with them; a script's process returns from here."""
    gc.disable()  # what is imported is no garbage, so nobody need look through it, now or when a process ends
    for script in scripts:
        runpy.run_path(script)  # not as the main program, so that it defines and does no more
    gc.freeze()
    gc.enable()
    for rank in map(str, range(int(ranks))):
        if not forked():
            os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank)
            return be_rank(path)
    for _ in range(int(ranks)):
        os.wait()


def be_rank(path):
    """Run what is asked for until nobody is there to ask; a script's process returns from here."""
    with Client(path) as pytest:
        pytest.send(int(os.environ["RANK"]))
        while True:
            asked = pytest.recv()
            if not (child := forked()):
                break
            pytest.send(child)
            pytest.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    run(*asked)


def forked():
    """The number of a new process, and in that 0."""
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    return os.fork()


def run(argv, cwd, variables):
    """Be the process that would run this script."""
    os.chdir(cwd)
    os.environ.update(variables)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    faulthandler.register(signal.SIGUSR1)
    sys.argv = list(argv)
    sys.path[0] = str(Path(argv[0]).parent)
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(*sys.argv[1:])
