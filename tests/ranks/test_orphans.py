"""No rank, and nothing that a rank needs, outlives its notebook."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_lib.ranks import RankTimeout, run_ranks
from course_lib.ranks.lifeline import die_with_parent

ROOT = Path(__file__).parents[2]

SCRIPT = """
import os, sys, time
import torch.distributed as dist
from course_lib.ranks import lifeline, run_ranks

def report(path):
    rank = dist.get_rank()
    open(f"{path}/{rank}-{os.getpid()}", "w").close()
    {then}

run_ranks(report, 4, sys.argv[1], timeout=60)
time.sleep(60)
"""


BUSY = """if rank == 0:
        dist.recv(__import__('torch').ones(1), 1)
    while rank == 1: pass
    if rank == 2:
        sum(range(10**11))  # C code that holds the interpreter lock
    os.kill(os.getpid(), 19)  # stopped"""
NOTEBOOK_FORKED = """run_ranks(int, 4)
if os.fork() == 0:
    open(f"{sys.argv[1]}/fork-{os.getpid()}", "w").close()
    time.sleep(5)
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("then", "first"),
    [("pass", ""), (BUSY, ""), (BUSY, NOTEBOOK_FORKED)],
    ids=["between two runs", "waiting, computing, in C code, stopped", "a process that the notebook forked lives on"],
)
def test_nothing_outlives_a_killed_notebook(short_folder, then, first):
    pids, temporary = short_folder / "pids", short_folder / "tmp"
    pids.mkdir()
    temporary.mkdir()
    script = SCRIPT.replace("{then}", then).replace("run_ranks(report", f"{first}run_ranks(report")
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", script, pids]
    notebook = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    ranks = [pid for name, pid in wait_for_pids(pids, 4 + bool(first)).items() if name != "fork"]
    assert len(ranks) == 4 and all(map(is_running, ranks))
    if first:
        notebook.kill()
    else:  # as Jupyter does
        os.killpg(notebook.pid, signal.SIGKILL)
    notebook.wait()
    assert_gone(ranks)
    assert_soon(lambda: not list(temporary.iterdir()), "files are left behind")


BUSY_SCRIPT = """
import sys
from course_lib.ranks.script import run_script
name = f"'{sys.argv[1]}/' + os.environ['RANK'] + f'-{{os.getpid()}}'"
run_script(f"import os; open({name}, 'w').close(); sum(range(10**11))", 2, timeout=60)
"""


def test_no_process_of_a_script_outlives_a_killed_notebook(tmp_path):
    notebook = subprocess.Popen([sys.executable, "-c", BUSY_SCRIPT, tmp_path], cwd=ROOT)
    pids = wait_for_pids(tmp_path, 2).values()
    notebook.kill()
    notebook.wait()
    assert_gone(pids)


DAEMON = """
import subprocess, sys
from course_lib.ranks import run_ranks

def leave(folder):
    code = "import os, sys, time; open(f'{sys.argv[1]}/0-{os.getpid()}', 'w').close(); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", code, folder], start_new_session=True)

run_ranks(leave, 1, sys.argv[1])
import time; time.sleep(60)
"""


def test_a_process_that_a_rank_started_in_a_session_of_its_own_ends_with_the_notebook(tmp_path):
    notebook = subprocess.Popen([sys.executable, "-c", DAEMON, tmp_path], cwd=ROOT)
    pids = wait_for_pids(tmp_path, 1).values()
    notebook.kill()
    notebook.wait()
    assert_gone(pids)


def test_a_program_that_ends_while_the_fork_server_imports_leaves_no_traceback():
    code = "from course_lib.ranks.server import start_fork_server; start_fork_server()"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_what_a_rank_forked_ends_with_the_pool(tmp_path):
    def fork_and_wait(folder):
        if os.fork() == 0:
            Path(folder, f"fork-{os.getpid()}").touch()
            time.sleep(30)
            os._exit(0)
        time.sleep(30)

    with pytest.raises(RankTimeout):
        run_ranks(fork_and_wait, 1, str(tmp_path), timeout=0.5)
    assert_gone(wait_for_pids(tmp_path, 1).values())


def test_no_process_outlives_a_killed_notebook_without_prctl(tmp_path):
    """What macOS relies on: the lifeline alone."""
    crippled = (
        "import ctypes\nreal = ctypes.CDLL\n"
        "ctypes.CDLL = lambda name, *args, **more: real(name, *args, **more) if name else object()\n"
    )
    (tmp_path / "crippled").mkdir()
    (tmp_path / "crippled" / "sitecustomize.py").write_text(crippled)
    (tmp_path / "pids").mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'crippled'}:{ROOT}"}
    command = [sys.executable, "-c", SCRIPT.replace("{then}", "while True: pass"), tmp_path / "pids"]
    notebook = subprocess.Popen(command, env=environment)
    pids = wait_for_pids(tmp_path / "pids", 4).values()
    notebook.kill()
    notebook.wait()
    assert_gone(pids)


def test_prctl_is_found_where_it_exists_and_missed_where_not(monkeypatch):
    assert subprocess.run(
        [
            sys.executable,
            "-c",
            "from course_lib.ranks.lifeline import die_with_parent; assert die_with_parent()",
        ],
        cwd=ROOT,
    ).returncode == (0 if sys.platform == "linux" else 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not die_with_parent()


def test_two_notebooks_at_once(tmp_path):
    script = SCRIPT.replace("{then}", "dist.all_reduce(__import__('torch').ones(1))").replace("time.sleep(60)", "")
    for name in "ab":
        (tmp_path / name).mkdir()
    both = [subprocess.Popen([sys.executable, "-c", script, tmp_path / name], cwd=ROOT) for name in "ab"]
    assert [process.wait(60) for process in both] == [0, 0]
    assert [len(list((tmp_path / name).iterdir())) for name in "ab"] == [4, 4]


def wait_for_pids(folder, count):
    deadline = time.monotonic() + 60
    while len(found := list(folder.iterdir())) < count:
        assert time.monotonic() < deadline, "the ranks never started"
        time.sleep(0.05)
    return {name: int(pid) for name, pid in (path.name.split("-") for path in found)}


def is_running(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def assert_gone(pids):
    assert_soon(lambda: not any(map(is_running, pids)), f"some still run of {list(pids)}")


def assert_soon(condition, otherwise):
    deadline = time.monotonic() + 3
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)
