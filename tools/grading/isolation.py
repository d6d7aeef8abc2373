"""A submission runs alone: in a folder of its own with a copy of the library, and what it starts ends with it.

A warden ends the processes, and wakes what was stopped. Where bubblewrap works nothing else is in reach: no other file
of the course or the account, no network, no other process. `told` says for each case what stays open.
"""

from __future__ import annotations

import getpass
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from tools.grading.warden import wake
from tools.paths import LEARNER, ROOT, quiet_kernels

WARDEN = Path(__file__).with_name("warden.py")
SILENCE_S = 300  # without a line, which is above what a cell may take: only an attack on the executor gets here
PRINTED = 200_000_000  # characters in all, for the same reason
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
SETTINGS = ("ld.so.cache", "passwd", "group", "hosts", "nsswitch.conf", "localtime", "alternatives")
HANDED_ON = ("PATH", "LANG", "LC_ALL", "OMP_NUM_THREADS")

Lines = queue.SimpleQueue[str | None]  # of a run; None is their end


class IsolationError(Exception):
    """The program that should have run a submission gave no answer."""


@dataclass
class Runs:
    """The runs of one grading, which can be stopped together."""

    hidden: tuple[Path, ...] = ()  # folders that nobody sees in bubblewrap, wherever they lie
    stopped: bool = False
    _running: set[subprocess.Popen[str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def alone(self, script: Path, *, given: str, limit_s: float) -> Iterator[str]:
        """Run a script beside a copy of the library, `given` as its input; yield each line that it prints.

        Raises: IsolationError with its last line if it failed, or if it took too long or said nothing for long.
        """
        with TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as folder:
            place = Path(folder)
            shutil.copytree(ROOT / "course_lib", place / "course_lib")
            shutil.copy(script, place)
            (place / "given").write_text(given)
            with (place / "given").open() as stdin, (place / "problems").open("w+") as stderr:
                command = [*fence(place, self.hidden), sys.executable, str(place / script.name)]
                process = self._start(command, place, stdin, stderr)
                lines: Lines = queue.SimpleQueue()
                reader = threading.Thread(target=pass_on, args=(process.stdout, lines), daemon=True)
                reader.start()
                try:
                    yield from lines_of(process, lines, limit_s)
                finally:
                    end(process)
                    reader.join(timeout=5)
                    with self._lock:
                        self._running.discard(process)
                stderr.seek(0)
                problems = stderr.read(100_000)
        if process.returncode:
            raise IsolationError(last_line(problems) or f"its run ended with status {process.returncode}")

    def stop(self) -> None:
        """End what runs, with all that it has started, and start nothing more."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                process.terminate()

    def _start(self, command: list[str], place: Path, stdin: IO[str], stderr: IO[str]) -> subprocess.Popen[str]:
        pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": stderr, "text": True, "errors": "replace"}
        with self._lock:
            if self.stopped:
                raise IsolationError("stopped")
            # A session of its own: Ctrl-C is for the grader, which ends this in order.
            process = subprocess.Popen(command, cwd=place, env=environment(place), start_new_session=True, **pipes)
            self._running.add(process)
        return process


def lines_of(process: subprocess.Popen[str], lines: Lines, limit_s: float) -> Iterator[str]:
    """Yield what a run prints until it ends; its warden is woken if the submission has stopped it.

    Raises: IsolationError after `limit_s`, after a long silence, and at too much of a good thing.
    """
    started = last = time.monotonic()
    printed = 0
    while True:
        with suppress(queue.Empty):
            line = lines.get(timeout=1)
            if line is None:
                break
            last = time.monotonic()
            printed += len(line)
            yield line
        wake(process.pid)
        now = time.monotonic()
        if now - started > limit_s:
            raise IsolationError(f"no end after {limit_s:.0f} s")
        if now - last > SILENCE_S:
            raise IsolationError(f"not a word for {SILENCE_S} s")
    if printed >= PRINTED:
        raise IsolationError(f"it printed more than {PRINTED} characters")
    process.wait()


def pass_on(pipe: IO[str], lines: Lines) -> None:
    """Hand the lines of a pipe on, and None at its end; what is too much is left in it."""
    printed = 0
    with pipe:
        while printed < PRINTED and (line := pipe.readline(PRINTED)):
            printed += len(line)
            lines.put(line)
    lines.put(None)


def end(process: subprocess.Popen[str]) -> None:
    """End one run; its warden goes last, awake."""
    process.terminate()
    wake(process.pid)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def awake() -> Iterator[None]:
    """As long as this lasts, a process apart wakes this one if a submission has stopped it."""
    if not trouble():  # none can
        yield
        return
    with subprocess.Popen([sys.executable, "-S", str(WARDEN), "--grader"], start_new_session=True) as watcher:
        try:
            yield
        finally:
            watcher.kill()


def fence(place: Path, hidden: tuple[Path, ...]) -> list[str]:
    """The words in front of a command that end what it starts and, where that works, keep it to `place`."""
    return [sys.executable, "-S", str(WARDEN), *([] if trouble() else bubblewrap(place, hidden))]


def bubblewrap(place: Path, hidden: tuple[Path, ...] = ()) -> list[str]:
    """bubblewrap's command: what Python needs can be read, `place` can be written, the rest is not there.

    The course may lie inside of what can be read, such as /usr/local, and Python inside of the course: of two folders
    the inner one is mounted later, and counts.
    """
    pythons = {sys.prefix, sys.base_prefix, str(LEARNER), str(LEARNER.resolve()), str(Path(sys.prefix).resolve())}
    readable = [*SYSTEM, *(f"/etc/{name}" for name in SETTINGS), *sorted(pythons)]
    mounts = {str(path.resolve()): ("--tmpfs",) for path in (ROOT, *hidden) if is_below(path.resolve(), readable)}
    mounts |= {path: ("--ro-bind-try", path) for path in readable}
    ordered = sorted(mounts, key=lambda path: len(Path(path).parts))
    return [
        "bwrap",
        *("--unshare-all", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *(word for path in ordered for word in (*mounts[path], path)),
        *("--bind", str(place), str(place), "--chdir", str(place), "--"),
    ]


def is_below(path: Path, folders: list[str]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


@cache
def trouble() -> str:
    """Why bubblewrap cannot be used here; empty if it can."""
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed"
    with TemporaryDirectory() as folder:
        tried = subprocess.run([*bubblewrap(Path(folder)), sys.executable, "-c", ""], capture_output=True, text=True)
    return f"bubblewrap does not work here ({last_line(tried.stderr)})" if tried.returncode else ""


def told() -> str:
    """What an instructor has to know before grading: what a submission can reach."""
    if not trouble():
        return (
            "bubblewrap: a submission sees its own folder, Python and the system's programs; no other file of yours, "
            "no network, no other process"
        )
    if not any(os.access(place, os.W_OK) for place in (ROOT / "course_lib", sys.prefix, sys.base_prefix)):
        return (
            f"{trouble()}: a submission acts as {getpass.getuser()}, who cannot change the course or Python; it can "
            f"read and change whatever else {getpass.getuser()} can, stop or end this run, and use the network"
        )
    return (
        f"{trouble()}: a submission acts as {getpass.getuser()}: it can read and change your files, the course and "
        "the grades of other runs among them, stop or end this run, and use the network; what later submissions are "
        "run from is compared after each one"
    )


def environment(place: Path) -> dict[str, str]:
    """Variables for a run: nothing of the account's own."""
    kept = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    quiet = quiet_kernels(place / "ipython")
    kept |= {name: quiet[name] for name in ("IPYTHONDIR", "JUPYTER_PATH", "COURSE_LIB_PUBLISHED")}
    (place / "tmp").mkdir()
    places = {"HOME": str(place), "TMPDIR": str(place / "tmp"), "PYTHONPATH": str(place)}
    return {**kept, **places, "PYTHONWARNINGS": "ignore", "NBGRADER_EXECUTION": "autograde"}


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
