"""The processes behind a notebook: started once, kept between cells, replaced when one of them is lost."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle

from course_lib.ranks import report
from course_lib.ranks.entry import start
from course_lib.ranks.stacks import Frame, parse_dump
from course_lib.ranks.tasks import Failure, Outcome, Task

MAX_RANKS = 32
START_LIMIT_S = 60.0
_GRACE_S = 1.0  # how long the other ranks may take to end by themselves after one failed
_STACK_LIMIT_S = 0.5

Listener = Callable[[int | None, str], None]


@dataclass(frozen=True, kw_only=True)
class _Member:
    process: BaseProcess
    work: Connection
    lifeline: Connection


class RankPool:
    """`world_size` processes joined in one group.

    Cost: 0.1 s; the first waits for the fork server, which takes about 1.5 s to import torch once for all pools.
    """

    def __init__(self, world_size: int, device: str | None = None) -> None:
        self.world_size = world_size
        self.device = device
        self.tasks = 0
        self.has_variables = False  # whether a cell ran: its variables would be lost with the pool
        self._folder = tempfile.mkdtemp(prefix="ranks-")
        self._members: list[_Member] = []
        self.notice = self._start()

    @property
    def alive(self) -> bool:
        """Whether every rank's process still runs."""
        return bool(self._members) and all(member.process.is_alive() for member in self._members)

    def _start(self) -> str:
        start_fork_server()
        context = multiprocessing.get_context("forkserver")
        with _blank_main():
            for rank in range(self.world_size):
                seat = {
                    "rank": rank,
                    "world_size": self.world_size,
                    "device": self.device,
                    "folder": self._folder,
                    "environment": dict(os.environ),
                }
                self._members.append(_start_member(context, seat))
        try:
            return "".join(self._collect_ready())
        except BaseException:
            self.kill()
            raise

    def _collect_ready(self) -> list[str]:
        deadline = time.monotonic() + START_LIMIT_S
        notices = []
        for rank, member in enumerate(self._members):
            kind, content = "output", ""
            while kind != "ready":
                if not member.work.poll(max(0.0, deadline - time.monotonic())):
                    raise report.RankTimeout(f"rank {rank} did not start in time", kind="timeout", rank=rank)
                try:
                    kind, content = cloudpickle.loads(member.work.recv_bytes())
                except EOFError:
                    raise report.RankError(f"rank {rank} died at its start", kind="died", rank=rank) from None
                notices.append(content)
        return notices

    def run(self, task: Task, *, ranks: list[int], timeout: float, listen: Listener) -> dict[int, Outcome]:
        """Carry out `task` on `ranks`; return each outcome. `listen(rank, text)` hears output while it comes.

        Raises: RankError if a rank raised or died, RankTimeout if not all ended within `timeout` seconds. A rank
        that still waits by then cannot be trusted again: the pool is killed, and a new one starts with the next task.
        """
        message = cloudpickle.dumps(task)
        try:
            for rank in ranks:
                self._members[rank].work.send_bytes(message)
            outcomes, failures = self._collect(ranks, time.monotonic() + timeout, listen)
            self._judge(ranks, outcomes, failures, timeout)
        except (KeyboardInterrupt, OSError):
            self.kill()
            raise
        return outcomes

    def _collect(
        self, ranks: list[int], deadline: float, listen: Listener
    ) -> tuple[dict[int, Outcome], dict[int, Failure | None]]:
        """Gather outcomes until all ended, the deadline passed, or the grace after a first failure is over."""
        outcomes: dict[int, Outcome] = {}
        failures: dict[int, Failure | None] = {}  # in the order in which they came; None: the process died
        waiting = set(ranks)
        while waiting and (left := deadline - time.monotonic()) > 0:
            members = {rank: self._members[rank] for rank in waiting}
            sources: dict[Any, int] = {member.work: rank for rank, member in members.items()}
            sources |= {member.process.sentinel: rank for rank, member in members.items()}
            for rank in {sources[source] for source in connection.wait(list(sources), left)}:
                kind, content = _next_message(members[rank])
                if kind == "output":
                    listen(rank, content)
                    continue
                waiting.discard(rank)
                if kind == "dead":
                    failures[rank] = None
                    continue
                outcomes[rank] = content
                if content.failure is not None:
                    failures[rank] = content.failure
            if failures:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        return outcomes, failures

    def _judge(
        self,
        ranks: list[int],
        outcomes: dict[int, Outcome],
        failures: dict[int, Failure | None],
        timeout: float,
    ) -> None:
        """Raise the one error that explains a run that did not end well; heal or kill the pool first."""
        waiting = [rank for rank in ranks if rank not in outcomes and rank not in failures]
        if not waiting and not failures:
            return
        stacks = {rank: self._stack(rank) for rank in waiting}
        lost = bool(waiting) or None in failures.values() or not self._in_step()
        if lost:
            self.kill()
        raise _error(failures, stacks, lost=lost, timeout=timeout, world_size=len(ranks))

    def _in_step(self) -> bool:
        """Whether all ranks still pass a barrier together after a failed task."""
        task = Task(number=self.tasks, code="dist.barrier()")
        message = cloudpickle.dumps(task)
        everyone = list(range(self.world_size))
        for member in self._members:
            member.work.send_bytes(message)
        outcomes, failures = self._collect(everyone, time.monotonic() + _GRACE_S, lambda rank, text: None)
        return len(outcomes) == self.world_size and not failures

    def _stack(self, rank: int) -> list[Frame]:
        """Ask a rank where it is; where C code holds its interpreter, let `faulthandler` tell."""
        member = self._members[rank]
        try:
            member.lifeline.send("where")
            if member.lifeline.poll(_STACK_LIMIT_S):
                stack: list[Frame] = member.lifeline.recv()
                return stack
            os.kill(member.process.pid or 0, signal.SIGUSR1)
            time.sleep(_STACK_LIMIT_S / 5)
            return parse_dump(os.path.join(self._folder, f"stack-{rank}"))
        except (OSError, EOFError):
            return []

    def kill(self) -> None:
        """End every rank at once. Nothing of a rank is worth a teardown that could itself hang."""
        for member in self._members:
            member.process.kill()
        for member in self._members:
            member.process.join()
            member.work.close()
            member.lifeline.close()
        self._members = []
        shutil.rmtree(self._folder, ignore_errors=True)


def start_fork_server() -> None:
    """Let the fork server import torch, which takes a second or two, while the caller goes on."""
    forkserver.set_forkserver_preload(["course_lib.ranks.preload"])
    _stay_on_this_machine()
    forkserver.ensure_running()


def _next_message(member: _Member) -> tuple[str, Any]:
    """What a rank says next; "dead" if its process ended and has nothing more to say.

    The end of the pipe alone does not tell: a process that the rank started may still hold it.
    """
    try:
        if member.work.poll():
            message: tuple[str, Any] = cloudpickle.loads(member.work.recv_bytes())
            return message
    except (EOFError, ConnectionResetError):
        pass
    return "dead", None


def _start_member(context: Any, seat: dict[str, Any]) -> _Member:
    work, rank_work = context.Pipe()
    lifeline, rank_lifeline = context.Pipe()
    process = context.Process(target=start, kwargs={**seat, "work": rank_work, "lifeline": rank_lifeline})
    process.start()
    rank_work.close()
    rank_lifeline.close()
    return _Member(process=process, work=work, lifeline=lifeline)


def _error(
    failures: dict[int, Failure | None],
    stacks: dict[int, list[Frame]],
    *,
    lost: bool,
    timeout: float,
    world_size: int,
) -> report.RankError:
    where = report.where_all_wait(stacks)
    restarted = "; all ranks were restarted, their variables are gone" if lost else ""
    if not failures:
        return report.RankTimeout(f"not finished after {timeout:g} s: {where}{restarted}", kind="timeout", rank=None)
    rank = report.blame(failures)
    failure = failures[rank]
    rest = f"; {where}" if where else ""
    if failure is None:
        return report.RankError(f"rank {rank} died (its process ended){rest}{restarted}", kind="died", rank=rank)
    raised = {number: other for number, other in failures.items() if other is not None}
    text = report.raised_message(raised, world_size)
    return report.RankError(f"{text}{rest}{restarted}", kind="raised", rank=rank, failure=failure)


@contextmanager
def _blank_main() -> Iterator[None]:
    """Start ranks without importing the caller's `__main__`: a script then needs no guard, a notebook has no file."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _stay_on_this_machine() -> None:
    """Let gloo use the loopback interface: nothing leaves the laptop, and no host name has to resolve."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
