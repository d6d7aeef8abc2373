"""A submission runs alone: what it starts ends with it, and what it should not see is not there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tools.grading import isolation
from tools.grading.isolation import IsolationError, Runs
from tools.paths import ROOT

FENCES = ["warden"] if isolation.trouble() else ["warden", "bubblewrap"]
LEAVES = """
import os, signal, subprocess, sys
subprocess.Popen(["sleep", "{0}"])
subprocess.Popen(["sh", "-c", "sleep {0} & sleep {0}"], start_new_session=True)
subprocess.Popen(["sh", "-c", "trap '' TERM HUP INT; (sleep {0}; true) & kill -STOP $!; sleep {0}"])
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execvp("sleep", ["sleep", "{0}"])
print("started", flush=True)
"""
LOOKS = """
import json, os, socket, sys
from pathlib import Path
import course_lib
above = [*Path.cwd().parents, *Path(course_lib.__file__).parents]
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=2)
    network = True
except OSError:
    network = False
print(json.dumps({
    "exercises": [str(place) for place in above if (place / "exercises").exists()],
    "root": Path(sys.argv[1]).exists(),
    "others": [path for path in sys.argv[3:] if Path(path).exists()],
    "secret": os.environ.get("COURSE_SECRET"),
    "home": os.environ["HOME"] == os.getcwd(),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "network": network,
}))
"""


@pytest.fixture(params=FENCES)
def fence(request, monkeypatch):
    if request.param == "warden":
        monkeypatch.setattr(isolation, "trouble", lambda: "left out")
    return request.param


def program(folder, text):
    path = folder / "probe.py"
    path.write_text(text)
    return path


def asleep(seconds):
    return subprocess.run(["pgrep", "-f", f"sleep {seconds}"], capture_output=True, text=True).stdout.split()


def until(condition, limit_s=20.0):
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_everything_that_was_started_has_ended_with_the_run(fence, tmp_path):
    assert Runs().alone(program(tmp_path, LEAVES.format(876501)), given="") == "started\n"
    assert asleep(876501) == []


def test_stopping_ends_a_run_and_lets_no_other_start(fence, tmp_path):
    runs, raised = Runs(), []

    def run():
        with pytest.raises(IsolationError) as caught:
            runs.alone(program(tmp_path, LEAVES.format(876502) + "signal.pause()\n"), given="")
        raised.append(caught)

    thread = threading.Thread(target=run)
    thread.start()
    assert until(lambda: len(asleep(876502)) >= 4)
    runs.stop()
    thread.join(20)
    assert raised and asleep(876502) == []
    with pytest.raises(IsolationError, match="^stopped$"):
        runs.alone(tmp_path / "probe.py", given="")


def test_a_killed_grader_leaves_nothing(fence, tmp_path):
    program(tmp_path, LEAVES.format(876503) + "signal.pause()\n")
    code = f"""
from pathlib import Path
from tools.grading import isolation
if {fence == "warden"}:
    isolation.trouble = lambda: "left out"
isolation.Runs().alone(Path({str(tmp_path / "probe.py")!r}), given="")
"""
    own = {**os.environ, "TMPDIR": str(tmp_path)}  # whose folder nobody clears away
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=own) as grader:
        started = until(lambda: len(asleep(876503)) >= 4)
        grader.send_signal(signal.SIGKILL)
    assert started
    assert until(lambda: not asleep(876503))


def test_what_a_run_can_see(fence, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_SECRET", "token")
    other = tmp_path / "another-submission.ipynb"
    other.write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        script = program(tmp_path, LOOKS)
        seen = json.loads(Runs().alone(script, str(ROOT / "exercises"), port, str(other), str(script), given=""))
    kept_out = fence == "bubblewrap"
    assert (seen["exercises"], seen["secret"], seen["home"]) == ([], None, True)
    assert (seen["root"], seen["network"]) == (not kept_out, not kept_out)
    assert seen["others"] == ([] if kept_out else [str(other), str(script)])
    assert not kept_out or seen["processes"] <= 3
    assert kept_out == (isolation.left_out() == "")


def test_a_run_cannot_change_the_library_of_the_next(fence, tmp_path):
    spoil = "import course_lib\nfrom pathlib import Path\nPath(course_lib.__file__).write_text('raise SystemExit(7)')"
    Runs().alone(program(tmp_path, spoil), given="")
    assert Runs().alone(program(tmp_path, "import course_lib; print(1)"), given="") == "1\n"
    assert "SystemExit(7)" not in (ROOT / "course_lib" / "__init__.py").read_text()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("raise ValueError('no kernel')", "^ValueError: no kernel$"),
        ("import os; os._exit(3)", "^its run ended with status 3$"),
    ],
)
def test_a_run_that_fails_says_why(fence, tmp_path, text, line):
    with pytest.raises(IsolationError, match=line):
        Runs().alone(program(tmp_path, text), given="")


def test_a_run_that_never_ends_is_ended(fence, tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "LIMIT_S", 1)
    with pytest.raises(IsolationError, match="^no end after 1 s$"):
        Runs().alone(program(tmp_path, LEAVES.format(876504) + "while True: pass"), given="")
    assert asleep(876504) == []


def test_without_bubblewrap_one_line_says_what_is_left_out(monkeypatch):
    isolation.trouble.cache_clear()
    monkeypatch.setattr(isolation.shutil, "which", lambda name: None)
    try:
        assert isolation.left_out() == (
            "bubblewrap is not installed: a submission can read this account's files and use the network; "
            "its processes are ended, and the grades are out of its reach"
        )
    finally:
        isolation.trouble.cache_clear()
