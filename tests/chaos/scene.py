"""A program of its own for each line, and what is left of it: all its processes carry a mark in their environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

from tests.chaos.line import LeftOut
from tools.paths import ROOT

_MARK = "COURSE_CHAOS"
_END_S = 3.0  # within which everything has to be gone
_SMALL_DISK = 'mount -t tmpfs -o size={size} small "$0" && {{ {then}; exec "$@"; }}'


class Scene:
    """A folder, an environment with temporary files in it, and the programs that run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._mark = f"{_MARK}={uuid.uuid4().hex}"

    def start(self, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start this Python with these words; `before` are the words of a program that starts it."""
        name, _, value = self._mark.partition("=")
        environment = {**os.environ, name: value, "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT)}
        environment.pop("PYTHONWARNINGS", None)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*before, sys.executable, *words], cwd=self.folder, env=environment, **pipes)

    def processes(self) -> list[int]:
        """All that the scene's programs have started and that still run."""
        marked = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                running = "\nState:\tZ" not in (path / "status").read_text()
                if running and self._mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    marked.append(int(path.name))
        return marked

    def left(self) -> int:
        """How many processes outlive the scene, after a while; they are ended."""
        deadline = time.monotonic() + _END_S
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def files_left(self) -> str:
        """Names of temporary files that nobody has removed, as a clause; empty if there are none."""
        cache = "torchinductor_"  # of torch.compile, for all programs of a user
        names = sorted(path.name for path in self.temporary.iterdir() if not path.name.startswith(cache))
        return f" and left {', '.join(names)}" if names else ""

    def small_disk(self, folder: Path, size: str, then: str = ":") -> tuple[str, ...]:
        """Words that let a program see `folder` as a disk of this size. Raises: LeftOut where that cannot be had."""
        words = ("unshare", "--user", "--map-root-user", "--mount")
        if not shutil.which("unshare") or subprocess.run([*words, "true"], capture_output=True).returncode:
            raise LeftOut("a disk of its own (unshare) cannot be had on this machine")
        return (*words, "sh", "-c", _SMALL_DISK.format(size=size, then=then), str(folder))
