"""Where a rank is: what it tells of its stacks, and what `faulthandler` writes of one that cannot tell."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from dataclasses import dataclass, field
from functools import cache

import course_lib

LIBRARIES = tuple(os.path.realpath(path) + os.sep for path in (*course_lib.__path__, sysconfig.get_path("stdlib")))
_START = os.path.join(os.path.dirname(__file__), "entry.py")
_DUMP_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')


@cache
def is_own_file(file: str) -> bool:
    """Whether the learner wrote it: it is of neither the standard library, nor an installed package, nor this one."""
    installed = file.startswith("<frozen") or f"{os.sep}site-packages{os.sep}" in file
    return not installed and not os.path.realpath(file).startswith(LIBRARIES)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One Python frame: file, line, function, and the few arguments that a report needs."""

    file: str
    line: int
    name: str
    values: dict[str, int] = field(default_factory=dict)
    group: Members | None = None

    @property
    def is_own(self) -> bool:
        """Whether the learner wrote it."""
        return is_own_file(self.file)

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


@dataclass(frozen=True, kw_only=True)
class Members:
    """The group that a call names: torch's name for it, and its global ranks."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Thread:
    """A thread beside the main one that runs the learner's code; `left` if an earlier task started it."""

    name: str
    left: bool
    frames: list[Frame]


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Where a rank is: the main thread's frames, outermost first, and its other threads.

    `standstill` says why there are no frames, or what else the rank has not got done.
    """

    frames: list[Frame] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    standstill: str = ""


def dump_file(folder: str, rank: int) -> str:
    """Where a rank writes its stack when nothing else of it can."""
    return os.path.join(folder, f"stack-{rank}")


def read_dump(path: str) -> str:
    """What `faulthandler` wrote into a file; empty if there is none."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def parse_stack(dump: str) -> list[Frame]:
    """The stack that `faulthandler` wrote, outermost first; empty if it wrote none."""
    found = [_DUMP_LINE.match(line) for line in dump.splitlines()]
    return of_rank([Frame(file=m["file"], line=int(m["line"]), name=m["name"]) for m in found if m][::-1])


def of_rank(frames: list[Frame]) -> list[Frame]:
    """From the rank's own start on: the fork server below it has a line that is in no file, as a cell's are."""
    starts = (number for number, frame in enumerate(frames) if frame.file == _START)
    return frames[next(starts, 0) :]
