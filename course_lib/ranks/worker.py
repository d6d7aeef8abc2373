"""One rank: a process that joins the group, then carries out tasks in a namespace that it keeps."""

from __future__ import annotations

import ast
import gc
import io
import os
import signal
import sys
import threading
import traceback
import types
import warnings
from dataclasses import dataclass
from socket import socket
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle
import torch
import torch.distributed as dist
from IPython.lib.pretty import pretty

from course_lib.comm import call, ledger
from course_lib.errors import four_parts
from course_lib.ranks import at_home, death, devices, groups, introspection, lifeline, patience, stacks
from course_lib.ranks.plain import pickled, unpickled
from course_lib.ranks.tasks import Failure, Outcome, Task, register_source
from course_lib.ranks.wire import RankEnd


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Everything a rank is given at its start."""

    rank: int
    world_size: int
    local_rank: int  # among the ranks of its machine: it chooses the GPU
    local_size: int
    device: str  # cpu or cuda
    store: str  # where the ranks of a world meet, as torch's `init_method`
    master: str  # host:port, for scripts that ask the environment
    folder: str
    work: socket
    lifeline: socket


class _Voice(io.TextIOBase):
    """A rank's stdout and stderr: each piece of text goes to the notebook at once, with its task's number."""

    encoding = "utf-8"

    def __init__(self, work: RankEnd) -> None:
        self._work = work
        self.number = 0  # of the present task
        self.left: WeakKeyDictionary[threading.Thread, int] = WeakKeyDictionary()  # threads that earlier tasks left

    def write(self, text: str) -> int:
        self._work.say(text, self.left.get(threading.current_thread(), self.number))
        return len(text)

    def close(self) -> None:
        """A rank keeps its voice: the next cell prints too."""

    def end_task(self) -> None:
        """What the threads that still run say from now on belongs to this task."""
        for thread in introspection.left_running():
            self.left.setdefault(thread, self.number)


def main(seat: Seat) -> None:
    """Run rank `seat.rank` until the notebook closes the wire."""
    guarded = lifeline.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the notebook's to handle
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the fork server's own
    work = RankEnd(seat.work)
    voice = _Voice(work)
    lifeline.watch(RankEnd(seat.lifeline), lambda: cloudpickle.dumps(introspection.whereabouts(voice.left)))
    introspection.dump_on_signal(stacks.dump_file(seat.folder, seat.rank))
    introspection.dump_on_death(death.death_file(seat.folder, seat.rank))
    sys.stdout = sys.stderr = voice
    patience.answer_by(lambda seconds: work.ask_for_time(seconds, voice.number))
    torch.set_num_threads(1)
    at_home.say_who(
        rank=seat.rank,
        world_size=seat.world_size,
        local_rank=seat.local_rank,
        local_size=seat.local_size,
        master=seat.master,
    )
    try:
        choice = _join_group(seat)
    except Exception as error:
        work.answer(_packed(Outcome(failure=_describe(error))), voice.number)
        return
    notice = choice.notice
    if not guarded:
        notice += "no prctl on this system: a rank stuck in C code may outlive a killed notebook\n"
    namespace = _fresh_namespace(seat, choice.device)
    work.answer(_packed(Outcome(value=notice if seat.rank == 0 else "")), voice.number)
    _attend(work, voice, namespace, choice.device)


def _attend(work: RankEnd, voice: _Voice, namespace: dict[str, Any], device: torch.device) -> None:
    """Carry out one task after the other. A forked copy of the rank that comes back here has nothing to answer."""
    process = os.getpid()
    while os.getpid() == process:
        try:
            message = work.hear()
        except EOFError:
            return
        voice.number = message.number
        answer = _packed(_carry_out(cloudpickle.loads(message.content), namespace, device))
        voice.end_task()
        work.answer(answer, message.number)


def _packed(outcome: Outcome) -> bytes:
    """Pickle an outcome; one for which the memory does not suffice becomes a failure."""
    try:
        packed: bytes = cloudpickle.dumps(outcome)
    except MemoryError as error:
        packed = cloudpickle.dumps(Outcome(failure=_describe(error)))
    return packed


def _join_group(seat: Seat) -> devices.Choice:
    """Take a device and join the default group."""
    choice = devices.choose(seat.local_rank, seat.local_size, seat.device)
    devices.take(choice)
    groups.join(choice.backend, seat.store, seat.rank, seat.world_size)
    return choice


def _fresh_namespace(seat: Seat, device: torch.device) -> dict[str, Any]:
    """The names a cell finds. It is `__main__`, so that classes defined in cells can be pickled."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names = {"rank": seat.rank, "world_size": seat.world_size, "device": device, "torch": torch, "dist": dist}
    module.__dict__.update(names)
    return module.__dict__


def _carry_out(task: Task, namespace: dict[str, Any], device: torch.device) -> Outcome:
    """Run one task; an exception becomes part of the outcome, and the ledger's events travel with it.

    What the notebook sends arrives on this rank's device.
    """
    for name, lines in task.sources.items():
        register_source(name, lines)
    call.start_cell(task.number)
    ledger.clear()
    value: Any = None
    pulled: bytes | None = None
    failure: Failure | None = None
    try:
        if task.push is not None:
            namespace.update(unpickled(task.push, device))
        value = _run_cell(task, namespace) if task.code is not None else _run_call(task, device)
        pulled = pull(task.pull, namespace) if task.pull else None
    except BaseException as error:  # KeyboardInterrupt and SystemExit too: they end the task, not the rank
        failure = _describe(error)
        _forget(error)
    return Outcome(failure=failure, value=value, pulled=pulled, events=list(ledger.current()))


def _run_cell(task: Task, namespace: dict[str, Any]) -> str | None:
    """Execute a cell's statements; return the text of its last expression, as a notebook would show it."""
    code = task.code or ""
    register_source(task.file, code.splitlines(keepends=True))
    body = ast.parse(code, task.file)
    last = body.body[-1] if body.body else None
    if not isinstance(last, ast.Expr) or code.rstrip().endswith(";"):  # a semicolon silences, as in any cell
        exec(compile(body, task.file, "exec"), namespace)
        return None
    body.body.pop()
    exec(compile(body, task.file, "exec"), namespace)
    value = eval(compile(ast.Expression(last.value), task.file, "eval"), namespace)
    return None if value is None else pretty(value)


def _run_call(task: Task, device: torch.device) -> bytes:
    """Call the pickled function; its result travels pickled, so that tensors need no shared memory."""
    assert task.call is not None
    function, args = unpickled(task.call, device)
    return pickled(function(*args))


def pull(names: tuple[str, ...], namespace: dict[str, Any]) -> bytes:
    """Pickle the named variables for the notebook."""
    missing = [name for name in names if name not in namespace]
    if missing:
        message = four_parts(
            "%%ranks --pull",
            f"{', '.join(missing)} is not defined on the ranks",
            "only a rank's own variables can be pulled",
            "assign it in the cell or correct the name",
        )
        raise ValueError(message)
    return pickled({name: namespace[name] for name in names})


def _forget(error: BaseException) -> None:
    """Free what a failed task has left now: a message that was under way must not warn in a later task."""
    with warnings.catch_warnings(action="ignore"):  # nobody forgot its wait(): the error came first
        error.__traceback__ = None
        gc.collect()


def _describe(error: BaseException) -> Failure:
    """Reduce an exception to what the notebook shows: type, text and the learner's own lines."""
    frames = [introspection.from_frame(frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
    own = [
        stacks.Frame(file=frame.file, line=line, name=frame.name)
        for frame, line in zip(frames, lines, strict=True)
        if frame.is_own
    ]
    missing = error.name if isinstance(error, NameError) else None
    return Failure(type=type(error).__name__, text=_text(error), frames=own, missing_name=missing)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as other:
        return f"(its text cannot be had: __str__ raises {type(other).__name__})"
