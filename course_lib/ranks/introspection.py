"""A rank reads its own stacks, while its main thread waits or runs.

The lifeline's thread reads the frames, with the arguments that say which collective, which peer and which group.
It cannot while C code holds the interpreter lock; then `faulthandler`, which needs no lock, writes names and lines.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import traceback
from collections.abc import Container
from inspect import getattr_static  # runs no code of an object that may be half made
from types import FrameType

import torch.distributed as dist

from course_lib.ranks import groups
from course_lib.ranks.stacks import Frame, Members, Thread, Whereabouts, is_own_file, of_rank

_TOLD = ("call", "src", "dst")


def whereabouts(left: Container[threading.Thread]) -> Whereabouts:
    """Where this process's threads are; `left` holds those that earlier tasks have left running."""
    frames = sys._current_frames()
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    threads = [
        Thread(name=thread.name, left=thread in left, frames=_stack(frames.get(thread.ident or 0))) for thread in others
    ]
    return Whereabouts(
        frames=_stack(frames.get(threading.main_thread().ident or 0)),
        threads=[thread for thread in threads if any(frame.is_own for frame in thread.frames)],
    )


def left_running() -> list[threading.Thread]:
    """The threads that are in the learner's code, or in none yet, as a timer; an executor's that wait are not."""
    frames = sys._current_frames()
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    return [thread for thread in others if _is_at_work(frames.get(thread.ident or 0))]


def _is_at_work(frame: FrameType | None) -> bool:
    files = {line.f_code.co_filename for line, _ in traceback.walk_stack(frame)} if frame is not None else set()
    return any(map(is_own_file, files)) or files <= {threading.__file__}


def from_frame(frame: FrameType) -> Frame:
    """Copy what a report needs out of a live frame."""
    values = {key: frame.f_locals[key] for key in _TOLD if isinstance(frame.f_locals.get(key), int)}
    if number := values.get("call") or getattr_static(frame.f_locals.get("port"), "call", None):
        values["call"] = number
    what = getattr_static(frame.f_locals.get("self"), "what", "")  # a message's handle knows whom it waits for
    code, line = frame.f_code, frame.f_lineno or frame.f_code.co_firstlineno  # no line yet: it is being entered
    return Frame(file=code.co_filename, line=line, name=what or code.co_name, values=values, group=_members(frame))


def _members(frame: FrameType) -> Members | None:
    """The group that a call was given; None if there is none, or one of the two that mean all ranks."""
    group = frame.f_locals.get("group")
    if not isinstance(group, dist.ProcessGroup) or groups.means_all_ranks(group):
        return None
    return Members(name=group.group_name, ranks=tuple(dist.get_process_group_ranks(group)))


def _stack(frame: FrameType | None) -> list[Frame]:
    frames = []
    while frame is not None:
        frames.append(from_frame(frame))
        frame = frame.f_back
    return of_rank(frames[::-1])


def dump_on_signal(path: str) -> None:
    """Make SIGUSR1 write the main thread's stack to `path`, even while C code holds the interpreter lock."""
    faulthandler.register(signal.SIGUSR1, file=open(path, "w"), all_threads=False)  # noqa: SIM115  stays open


def dump_on_death(path: str) -> None:
    """Make the signals of C code, and the one that asks a process to end, write the stack first."""
    file = open(path, "w")  # noqa: SIM115  stays open
    faulthandler.enable(file=file, all_threads=False)
    faulthandler.register(signal.SIGTERM, file=file, all_threads=False, chain=True)
