"""A script on several processes, each told by environment variables who it is, as torchrun tells it.

Forked from the server that has imported torch, they start in a moment; torchrun's own take seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch

from course_lib.ranks import lifeline, server
from course_lib.ranks.counted import Call, calls_in, count_into
from course_lib.ranks.forwarded import count_rows_into, rows_in
from course_lib.ranks.killed import stand_still_in
from course_lib.ranks.member import blank_main, free_port
from course_lib.ranks.remembered import remember_into
from course_lib.ranks.saved import Saved
from course_lib.ranks.waited import note_waits_into, waits_in
from course_lib.ranks.wire import RankEnd

_HERE = "127.0.0.1"
_OWN = ("RANK", "LOCAL_RANK")
_AFTER_A_FAILURE_S = 1.0  # for the others to end as well; then they only wait for the one that failed
_LOOK_S = 0.01  # how often whether all stand where they are to be killed


class Ended(NamedTuple):
    """What became of one process; without a status it still ran when the time was over."""

    pid: int
    status: int | None
    printed: str
    problems: str  # what it wrote to stderr
    calls: tuple[Call, ...] = ()  # what it handed to torch.distributed
    remembered: int = 0  # numbers in the states of the optimizer that has most of them
    saved: int = 0  # bytes that autograd has kept for backward, at most; only if that is asked for
    rows: tuple[int, ...] = ()  # of each forward of the layer that was given most
    waits: tuple[float, ...] = ()  # when each wait for a call came back


def run_script(
    text: str, world_size: int, *, timeout: float, argument: str = "", saved: bool = False, killed_in: int = 0
) -> list[Ended]:
    """Run a script on so many processes, `timeout` seconds at most; what still runs then is ended.

    `argument` is what stands behind the script's name on the command line; `saved` asks what autograd keeps. When all
    that run have called `sys.audit("train.step", killed_in)`, they are killed, and none of them has gone any further.

    Raises: OSError in four parts if the system refuses.
    """
    server.start_fork_server()
    folder = Path(server.new_folder())
    (folder / "script.py").write_text(text, encoding="utf-8")
    port = free_port()
    shared = {**os.environ, "MASTER_ADDR": _HERE, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size))
    context = multiprocessing.get_context("forkserver")
    wires = [socket.socketpair() for _ in range(world_size)]
    processes = [
        context.Process(
            target=_take_part,
            args=(str(folder), argument, rank, wire, port, shared | dict.fromkeys(_OWN, str(rank)), saved, killed_in),
        )
        for rank, (_, wire) in enumerate(wires)
    ]
    try:
        with server.refusals_told(), blank_main():
            for process in processes:
                process.start()
        if _wait(processes, timeout, [folder / f"{rank}.there" for rank in range(world_size)] if killed_in else ()):
            for process in processes:
                _end(process)
        statuses = [process.exitcode for process in processes]
    finally:
        for process in processes:
            _end(process)
        for end in chain(*wires):
            end.close()
    return [
        Ended(
            process.pid or 0,
            status,
            _read(folder / f"{rank}.out"),
            _read(folder / f"{rank}.err"),
            calls_in(folder / f"{rank}.calls"),
            int(_read(folder / f"{rank}.remembered") or 0),
            int(_read(folder / f"{rank}.saved") or 0),
            rows_in(folder / f"{rank}.rows"),
            waits_in(folder / f"{rank}.waits"),
        )
        for rank, (process, status) in enumerate(zip(processes, statuses, strict=True))
    ]


def _take_part(
    folder: str,
    argument: str,
    rank: int,
    wire: socket.socket,
    port: int,
    environment: dict[str, str],
    saved: bool,
    killed_in: int,
) -> None:
    """The process of one rank, which ends with the notebook as a rank of the pool does."""
    server.forget_fork_server()
    os.setpgid(0, 0)
    lifeline.die_with_parent()
    lifeline.watch(RankEnd(wire), bytes)
    os.environ.update(environment)
    torch.set_num_threads(1)  # as torchrun does by OMP_NUM_THREADS, for which it is too late here
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{rank}.{name}", os.O_CREAT | os.O_WRONLY, 0o600), number)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (lines arrive even if the process is killed)
    warnings.simplefilter("default")  # whoever started us may take each for an error; torchrun does not
    count_into(f"{folder}/{rank}.calls", f"{folder}/script.py")
    note_waits_into(f"{folder}/{rank}.waits")
    count_rows_into(f"{folder}/{rank}.rows")
    remember_into(Path(f"{folder}/{rank}.remembered"))
    sys.argv = ["script.py", *filter(None, [argument])]
    store = _open_store(port) if rank == 0 else None  # noqa: F841  it is there as long as this name holds it
    book = Saved()
    if killed_in:
        stand_still_in(killed_in, Path(f"{folder}/{rank}.there"))
    try:
        with book.hooks() if saved else nullcontext():
            runpy.run_path(f"{folder}/script.py", run_name="__main__")
    finally:
        if saved:
            Path(f"{folder}/{rank}.saved").write_text(str(book.most), encoding="utf-8")


def _open_store(port: int) -> object:
    """The store at which the script's processes meet, as torchrun opens one. torch's own listens to every network."""
    from torch._C._distributed_c10d import TCPStore

    listener = socket.create_server((_HERE, port))
    return TCPStore(_HERE, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _wait(processes: Sequence[BaseProcess], timeout: float, there: Sequence[Path] = ()) -> bool:
    """Until all have ended, or the time is over, or one has failed and the others do not end either.

    With files that say so, until each that runs stands where it is to be killed, which is told.
    """
    deadline = time.monotonic() + timeout
    while running := [process.sentinel for process in processes if process.is_alive()]:
        if there and all(mark.exists() for mark, one in zip(there, processes, strict=True) if one.is_alive()):
            return True
        if any(process.exitcode for process in processes):
            deadline = min(deadline, time.monotonic() + _AFTER_A_FAILURE_S)
        if (left := deadline - time.monotonic()) <= 0:
            return False
        connection.wait(running, min(left, _LOOK_S) if there else left)
    return False


def _end(process: BaseProcess) -> None:
    """With all that it has started."""
    if process.pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
