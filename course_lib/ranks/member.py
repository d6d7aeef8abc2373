"""One rank as the notebook sees it: its process, the wire for tasks, and the lifeline, which says where it is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle

from course_lib.ranks.death import death_file, told
from course_lib.ranks.entry import start
from course_lib.ranks.stacks import Whereabouts, dump_file, parse_dump
from course_lib.ranks.wire import NotebookEnd
from course_lib.units import format_bytes

_ANSWER_LIMIT_S = 0.5
_DUMP_S = 0.1
_JOIN_LIMIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Member:
    """A rank's process and the notebook's ends of its two wires."""

    rank: int
    process: BaseProcess
    work: NotebookEnd
    lifeline: NotebookEnd
    dump: str  # the file that SIGUSR1 makes it write its stack to
    last_dump: str  # the file that a deadly signal makes it write its stack to

    @property
    def pid(self) -> int:
        """The process that alone may answer for this rank."""
        return self.process.pid or 0

    def end_group(self) -> None:
        """Kill the process and what it has forked."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> bool:
        """End it at once, say whether it still ran. Nothing of a rank is worth a teardown that could itself hang."""
        if not self.process.is_alive():
            return False
        self.end_group()
        self.process.kill()  # it may be too young for a group of its own
        return True

    def death(self) -> str:
        """What ended the process, as far as that is known."""
        self.process.join(_ANSWER_LIMIT_S)  # its wire may have ended a moment before it
        return told(self.process.exitcode, self.last_dump)

    def join(self) -> None:
        """Wait until a process that was killed has ended."""
        self.process.join(_JOIN_LIMIT_S)

    def close(self) -> None:
        """Close the wires."""
        self.work.close()
        self.lifeline.close()


def start_members(world_size: int, folder: str, device: str) -> Iterator[Member]:
    """Start one process for each rank, one after the other."""
    context = multiprocessing.get_context("forkserver")
    environment = dict(os.environ)
    master = f"127.0.0.1:{free_port()}"
    with blank_main():
        for rank in range(world_size):
            work, rank_work = socket.socketpair()
            lifeline, rank_lifeline = socket.socketpair()
            seat: dict[str, Any] = {
                "rank": rank,
                "world_size": world_size,
                "local_rank": rank,
                "local_size": world_size,
            }
            seat |= {"device": device, "store": f"file://{folder}/store", "master": master, "folder": folder}
            wires = {"work": rank_work, "lifeline": rank_lifeline}
            process = context.Process(target=start, args=(environment,), kwargs={**seat, **wires})
            member = Member(
                rank=rank,
                process=process,
                work=NotebookEnd(work),
                lifeline=NotebookEnd(lifeline),
                dump=dump_file(folder, rank),
                last_dump=death_file(folder, rank),
            )
            try:
                with rank_work, rank_lifeline:
                    process.start()
            except BaseException:
                member.close()
                raise
            yield member


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def blank_main() -> Iterator[None]:
    """Start ranks without importing the caller's `__main__`: a script then needs no guard, a notebook has no file."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def where(members: list[Member], number: int) -> dict[int, Whereabouts]:
    """Ask ranks where they are during task `number`; where C code holds the interpreter, let `faulthandler` tell."""
    for member in members:
        member.lifeline.put(number, b"")
    found: dict[int, Whereabouts] = {}
    silent: dict[Any, Member] = {member.lifeline: member for member in members}
    deadline = time.monotonic() + _ANSWER_LIMIT_S
    while silent and (left := deadline - time.monotonic()) > 0:
        ready: list[Any] = connection.wait(list(silent), left)
        for end in ready:
            try:
                answers = [message.content for message in end.take() if message.number == number]
            except EOFError:
                del silent[end]
                continue
            for content in answers:
                found[silent.pop(end).rank] = cloudpickle.loads(content)
    found |= _dumped(list(silent.values()))
    return {member.rank: _with_transfer(member, found[member.rank]) for member in members if member.rank in found}


def _with_transfer(member: Member, found: Whereabouts) -> Whereabouts:
    """Add what is only half on its way: the task to this rank, or its answer."""
    if member.work.unsent:
        text = f"had not taken all of its task, {format_bytes(member.work.unsent)} were left"
    elif member.work.received:
        text = f"was still sending its result, {format_bytes(member.work.received)} had come"
    else:
        return found
    return replace(found, standstill="; ".join(filter(None, (text, found.standstill))))


def _dumped(members: list[Member]) -> dict[int, Whereabouts]:
    for member in members:
        with suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGUSR1)
    if members:
        time.sleep(_DUMP_S)
    return {member.rank: _read_dump(member) for member in members}


def _read_dump(member: Member) -> Whereabouts:
    frames = []
    with suppress(OSError):
        frames = parse_dump(member.dump)
    return Whereabouts(frames=frames, standstill="" if frames else f"did not answer{_if_stopped(member.pid)}")


def _if_stopped(pid: int) -> str:
    """Linux tells in `/proc` that a process was stopped."""
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        if file.read().rpartition(") ")[2].startswith(("T", "t")):
            return ": its process was stopped by a signal"
    return ""
