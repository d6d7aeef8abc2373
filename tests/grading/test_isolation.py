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
root, port, *others = json.load(sys.stdin)
above = [*Path.cwd().parents, *Path(course_lib.__file__).parents]
try:
    socket.create_connection(("127.0.0.1", port), timeout=2)
    network = True
except OSError:
    network = False
print(json.dumps({
    "exercises": [str(place) for place in above if (place / "exercises").exists()],
    "root": Path(root).exists(),
    "others": [path for path in others if Path(path).exists()],
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


def alone(script, runs=None, given="", limit_s=60):
    return "".join((runs or Runs()).alone(script, given=given, limit_s=limit_s))


def asleep(seconds):
    return subprocess.run(["pgrep", "-f", f"sleep {seconds}"], capture_output=True, text=True).stdout.split()


def until(condition, limit_s=20.0):
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_everything_that_was_started_has_ended_with_the_run(fence, tmp_path):
    assert alone(program(tmp_path, LEAVES.format(876501))) == "started\n"
    assert asleep(876501) == []


def test_stopping_ends_a_run_and_lets_no_other_start(fence, tmp_path):
    runs, raised = Runs(), []

    def run():
        with pytest.raises(IsolationError) as caught:
            alone(program(tmp_path, LEAVES.format(876502) + "signal.pause()\n"), runs)
        raised.append(caught)

    thread = threading.Thread(target=run)
    thread.start()
    assert until(lambda: len(asleep(876502)) >= 4)
    runs.stop()
    thread.join(20)
    assert raised and asleep(876502) == []
    with pytest.raises(IsolationError, match="^stopped$"):
        alone(tmp_path / "probe.py", runs)


def test_a_killed_grader_leaves_nothing(fence, tmp_path):
    program(tmp_path, LEAVES.format(876503) + "signal.pause()\n")
    code = f"""
from pathlib import Path
from tools.grading import isolation
if {fence == "warden"}:
    isolation.trouble = lambda: "left out"
list(isolation.Runs().alone(Path({str(tmp_path / "probe.py")!r}), given="", limit_s=60))
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
        script = program(tmp_path, LOOKS)
        asked = [str(ROOT / "exercises"), server.getsockname()[1], str(other), str(script)]
        seen = json.loads(alone(script, given=json.dumps(asked)))
    kept_out = fence == "bubblewrap"
    assert (seen["exercises"], seen["secret"], seen["home"]) == ([], None, True)
    assert (seen["root"], seen["network"]) == (not kept_out, not kept_out)
    assert seen["others"] == ([] if kept_out else [str(other), str(script)])
    assert not kept_out or seen["processes"] <= 3
    assert kept_out == isolation.told().startswith("bubblewrap: a submission sees its own folder, Python and")


def test_a_run_cannot_change_the_library_of_the_next(fence, tmp_path):
    spoil = "import course_lib\nfrom pathlib import Path\nPath(course_lib.__file__).write_text('raise SystemExit(7)')"
    alone(program(tmp_path, spoil))
    assert alone(program(tmp_path, "import course_lib; print(1)")) == "1\n"
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
        alone(program(tmp_path, text))


def test_a_run_that_never_ends_is_ended(fence, tmp_path):
    with pytest.raises(IsolationError, match="^no end after 1 s$"):
        alone(program(tmp_path, LEAVES.format(876504) + "while True: pass"), limit_s=1)
    assert asleep(876504) == []


def test_a_run_that_is_silent_or_prints_for_ever_is_ended(fence, tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "SILENCE_S", 2)
    monkeypatch.setattr(isolation, "PRINTED", 100_000)
    with pytest.raises(IsolationError, match="^not a word for 2 s$"):
        alone(program(tmp_path, "import time; print(1, flush=True); time.sleep(60)"))
    for flood in ("print('x' * 1000)", "print('x' * 1000, end='')"):
        with pytest.raises(IsolationError, match="^it printed more than 100000 characters$"):
            alone(program(tmp_path, f"while True: {flood}"))


STOPS = """
import os, signal, subprocess, sys
stat = lambda pid: open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()
pids = [os.getpid()]
while (above := int(stat(pids[-1])[1])) > 1 and len(pids) < 4:
    pids.append(above)
stop = "import os, signal, sys; [os.kill(int(pid), signal.SIGSTOP) for pid in sys.argv[1:]]"
subprocess.Popen([sys.executable, "-c", stop, *map(str, pids[:%d])]).wait()
print("goes on")
"""


@pytest.mark.parametrize("above", [1, 2])
def test_what_a_submission_has_stopped_goes_on(fence, tmp_path, above):
    """Itself, and what is above it: its warden, or bubblewrap's first process."""
    started = time.monotonic()
    assert alone(program(tmp_path, STOPS % above)) == "goes on\n"
    assert time.monotonic() - started < 20


def test_a_stopped_grader_goes_on(tmp_path):
    """With everything between it and the submission."""
    program(tmp_path, STOPS % 3)
    code = f"""
from pathlib import Path
from tools.grading import isolation
isolation.trouble = lambda: "left out"
with isolation.awake():
    print(*isolation.Runs().alone(Path({str(tmp_path / "probe.py")!r}), given="", limit_s=60))
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as grader:
        try:
            assert grader.communicate(timeout=30)[0] == "goes on\n\n"
        finally:
            grader.kill()


SOLUTION = "exercises/solutions/02.ipynb"


@pytest.mark.skipif("bubblewrap" not in FENCES, reason="bubblewrap does not work here")
def test_a_course_inside_of_what_can_be_read_does_not_show_its_solutions(tmp_path, monkeypatch):
    """As under /opt or /usr; its own Python lies inside of it."""
    course = tmp_path / "usr" / "course"
    for name in (SOLUTION, "course_lib/__init__.py", "handed in/ann.ipynb", ".venv/lib/it.py"):
        (course / name).parent.mkdir(parents=True, exist_ok=True)
        (course / name).write_text("")
    (tmp_path / "usr" / "class").mkdir()
    (tmp_path / "usr" / "class" / "ben.ipynb").touch()
    monkeypatch.setattr(isolation, "SYSTEM", (*isolation.SYSTEM, str(tmp_path / "usr")))
    monkeypatch.setattr(isolation, "ROOT", course)
    monkeypatch.setattr(isolation, "LEARNER", course / ".venv")
    runs = Runs(hidden=(tmp_path / "usr" / "class",))
    look = "import os; print([name for place in {0!r} for _, _, names in os.walk(place) for name in names])"
    assert alone(program(tmp_path, look.format([str(tmp_path / "usr")])), runs) == "['it.py']\n"


@pytest.fixture
def without_bubblewrap(monkeypatch):
    isolation.trouble.cache_clear()
    monkeypatch.setattr(isolation.shutil, "which", lambda name: None)
    yield
    isolation.trouble.cache_clear()


def test_without_bubblewrap_one_line_says_what_a_submission_can_do(without_bubblewrap, monkeypatch):
    monkeypatch.setattr(isolation.getpass, "getuser", lambda: "ann")
    assert isolation.told() == (
        "bubblewrap is not installed: a submission acts as ann: it can read and change your files, the course and the "
        "grades of other runs among them, stop or end this run, and use the network; what later submissions are run "
        "from is compared after each one"
    )


def test_another_user_s_line_says_what_stays_in_reach(without_bubblewrap, monkeypatch):
    monkeypatch.setattr(isolation.getpass, "getuser", lambda: "grader")
    monkeypatch.setattr(isolation.os, "access", lambda place, mode: mode != os.W_OK)
    assert isolation.told() == (
        "bubblewrap is not installed: a submission acts as grader, who cannot change the course or Python; it can read "
        "and change whatever else grader can, stop or end this run, and use the network"
    )
