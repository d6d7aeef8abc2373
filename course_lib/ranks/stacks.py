"""Where a rank is: its Python stack, read while it waits or runs.

The lifeline's thread reads the main thread's frames, with the arguments that say which collective and which peer.
It cannot while C code holds the interpreter lock; then `faulthandler`, which needs no lock, writes names and lines.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import signal
import sys
import sysconfig
import threading
from dataclasses import dataclass, field
from types import FrameType

import course_lib

_LIBRARIES = tuple(os.path.realpath(path) + os.sep for path in (*course_lib.__path__, sysconfig.get_path("stdlib")))
_TOLD = ("call", "src", "dst")
_DUMP_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One Python frame: file, line, function, and the few arguments that a report needs."""

    file: str
    line: int
    name: str
    values: dict[str, int] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether the learner wrote it: neither the standard library, nor an installed package, nor this one."""
        installed = self.file.startswith("<frozen") or f"{os.sep}site-packages{os.sep}" in self.file
        return not installed and not os.path.realpath(self.file).startswith(_LIBRARIES)

    @property
    def source(self) -> str:
        """The line's text, empty if unknown."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def place(self) -> str:
        """`cell line 7` for code typed in a notebook, `line 7 of train.py` for a file."""
        if os.path.exists(self.file):
            return f"line {self.line} of {os.path.basename(self.file)}"
        return f"cell line {self.line}"


def from_frame(frame: FrameType) -> Frame:
    """Copy what a report needs out of a live frame."""
    values = {key: frame.f_locals[key] for key in _TOLD if isinstance(frame.f_locals.get(key), int)}
    if number := values.get("call") or getattr(frame.f_locals.get("port"), "call", None):
        values["call"] = number
    what = getattr(frame.f_locals.get("self"), "what", "")  # a message's handle knows whom it waits for
    code, line = frame.f_code, frame.f_lineno or frame.f_code.co_firstlineno  # no line yet: it is being entered
    return Frame(file=code.co_filename, line=line, name=what or code.co_name, values=values)


def main_thread_stack() -> list[Frame]:
    """The main thread's frames, outermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = []
    while frame is not None:
        frames.append(from_frame(frame))
        frame = frame.f_back
    return frames[::-1]


def dump_on_signal(path: str) -> None:
    """Make SIGUSR1 write the main thread's stack to `path`, even while C code holds the interpreter lock."""
    faulthandler.register(signal.SIGUSR1, file=open(path, "w"), all_threads=False)  # noqa: SIM115  stays open


def parse_dump(path: str) -> list[Frame]:
    """Read the last stack that `dump_on_signal` wrote, outermost first; empty if it wrote none."""
    with open(path) as file:
        found = [_DUMP_LINE.match(line.rstrip("\n")) for line in file]
    return [Frame(file=m["file"], line=int(m["line"]), name=m["name"]) for m in found if m][::-1]
