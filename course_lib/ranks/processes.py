"""A rank's process as the notebook handles it, wherever it runs: `Local` on this machine, `remote.Remote` elsewhere."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from course_lib.ranks.death import death_file, told
from course_lib.ranks.stacks import Frame, dump_file, parse_stack, read_dump

_ENDING_S = 0.5  # how long a process may take to end after its wire did
_JOIN_LIMIT_S = 5.0


class Process(Protocol):
    """What a pool asks of a rank's process."""

    @property
    def pid(self) -> int:
        """Which process alone may answer for the rank."""
        ...

    @property
    def sentinel(self) -> Any:
        """What `select` finds readable once the process has ended."""
        ...

    def kill(self) -> bool:
        """End it and what it has forked, at once; say whether it still ran."""
        ...

    def end_group(self) -> None:
        """It has ended: end what it has forked, which would go on speaking for it."""
        ...

    def join(self) -> None:
        """Wait until a process that was killed has ended."""
        ...

    def ask_for_stack(self) -> None:
        """Let it write its stack, even while C code holds the interpreter."""
        ...

    def stack(self) -> list[Frame]:
        """What it has written since; empty if nothing."""
        ...

    def why_silent(self) -> str:
        """Why it may not have answered, as far as that is known."""
        ...

    def death(self) -> str:
        """What ended it, and where it was then."""
        ...

    def close(self) -> None:
        """Let go of what the notebook holds of it."""
        ...


class Local:
    """A process that this machine's fork server has forked; `folder` is where it writes its stacks."""

    def __init__(self, process: BaseProcess, folder: str, rank: int) -> None:
        self._process = process
        self._dump, self._last_dump = dump_file(folder, rank), death_file(folder, rank)

    @property
    def pid(self) -> int:
        """Its number; 0 before it has started."""
        return self._process.pid or 0

    @property
    def sentinel(self) -> Any:
        """The fork server's pipe, through which its status comes."""
        return self._process.sentinel

    def kill(self) -> bool:
        """Nothing of a rank is worth a teardown that could itself hang."""
        if not self._process.is_alive():
            return False
        self.end_group()
        self._process.kill()  # it may be too young for a group of its own
        return True

    def end_group(self) -> None:
        """Its group has its number."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def join(self) -> None:
        """At most some seconds."""
        self._process.join(_JOIN_LIMIT_S)

    def ask_for_stack(self) -> None:
        """By the signal that `faulthandler` answers."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)

    def stack(self) -> list[Frame]:
        """From the file that `faulthandler` writes."""
        return parse_stack(read_dump(self._dump))

    def why_silent(self) -> str:
        """Linux tells in `/proc` that a process was stopped."""
        with suppress(OSError), open(f"/proc/{self.pid}/stat") as file:
            if file.read().rpartition(") ")[2].startswith(("T", "t")):
                return ": its process was stopped by a signal"
        return ""

    def death(self) -> str:
        """By its status and its last dump."""
        self._process.join(_ENDING_S)  # its wire may have ended a moment before it
        return told(self._process.exitcode, read_dump(self._last_dump))

    def close(self) -> None:
        """Nothing is held."""
