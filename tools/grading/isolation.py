"""A submission runs alone: in a folder of its own with a copy of the library, and what it starts ends with it.

A warden ends the processes. Where bubblewrap works nothing else is in reach: no other file of the course or the
account, no network, no other process; where it does not, `left_out` says what stays open.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.paths import LEARNER, ROOT, quiet_kernels

WARDEN = Path(__file__).with_name("warden.py")
LIMIT_S = 1800  # above what the execution allows itself; only a submission that attacks its executor gets here
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
SETTINGS = ("ld.so.cache", "passwd", "group", "hosts", "nsswitch.conf", "localtime", "alternatives")
HANDED_ON = ("PATH", "LANG", "LC_ALL", "OMP_NUM_THREADS")


class IsolationError(Exception):
    """The program that should have run a submission gave no answer."""


@dataclass
class Runs:
    """The runs of one grading, which can be stopped together."""

    stopped: bool = False
    _running: set[subprocess.Popen[str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def alone(self, script: Path, *words: str, given: str) -> str:
        """Run a script beside a copy of the library, `given` as its input; return what it printed.

        Raises: IsolationError with its last line if it failed.
        """
        with TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as folder:
            place = Path(folder)
            shutil.copytree(ROOT / "course_lib", place / "course_lib")
            shutil.copy(script, place)
            command = [*fence(place), sys.executable, str(place / script.name), *words]
            with self._start(command, place) as process:
                try:
                    output, problems = process.communicate(given, timeout=LIMIT_S)
                except subprocess.TimeoutExpired as error:
                    raise IsolationError(f"no end after {LIMIT_S} s") from error
                finally:
                    end(process)
                    with self._lock:
                        self._running.discard(process)
        if process.returncode:
            raise IsolationError(last_line(problems) or f"its run ended with status {process.returncode}")
        return output

    def stop(self) -> None:
        """End what runs, with all that it has started, and start nothing more."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                process.terminate()

    def _start(self, command: list[str], place: Path) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with self._lock:
            if self.stopped:
                raise IsolationError("stopped")
            # A session of its own: Ctrl-C is for the grader, which ends this in order.
            process = subprocess.Popen(command, cwd=place, env=environment(place), start_new_session=True, **pipes)
            self._running.add(process)
        return process


def end(process: subprocess.Popen[str]) -> None:
    """End one run; its warden goes last."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def fence(place: Path) -> list[str]:
    """The words in front of a command that end what it starts and, where that works, keep it to `place`."""
    return [sys.executable, "-S", str(WARDEN), *([] if trouble() else bubblewrap(place))]


def bubblewrap(place: Path) -> list[str]:
    """bubblewrap's command: what Python needs can be read, `place` can be written, the rest is not there."""
    pythons = {sys.prefix, sys.base_prefix, str(LEARNER), str(LEARNER.resolve()), str(Path(sys.prefix).resolve())}
    readable = [*SYSTEM, *(f"/etc/{name}" for name in SETTINGS), *sorted(pythons)]
    return [
        "bwrap",
        *("--unshare-all", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *(word for path in readable for word in ("--ro-bind-try", path, path)),
        *("--bind", str(place), str(place), "--chdir", str(place), "--"),
    ]


@cache
def trouble() -> str:
    """Why bubblewrap cannot be used here; empty if it can."""
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed"
    with TemporaryDirectory() as folder:
        tried = subprocess.run([*bubblewrap(Path(folder)), sys.executable, "-c", ""], capture_output=True, text=True)
    return f"bubblewrap does not work here ({last_line(tried.stderr)})" if tried.returncode else ""


def left_out() -> str:
    """What an instructor has to know before grading; empty with bubblewrap."""
    if not trouble():
        return ""
    return (
        f"{trouble()}: a submission can read this account's files and use the network; its processes are ended, "
        "and the grades are out of its reach"
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
