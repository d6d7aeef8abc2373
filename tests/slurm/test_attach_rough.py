"""Ranks on two nodes when somebody interrupts, when a node stands still, and when ranks cannot even start."""

from __future__ import annotations

import pytest

from tests.slurm.test_attach import ATTACHED, NOTEBOOK, notebook

COUNTED = """
import subprocess
def processes():  # of both nodes: their own and their ranks
    found = subprocess.run(["pgrep", "-f", "course_lib.ranks.node"], capture_output=True, text=True).stdout.split()
    return len(found)
def settled(count):
    deadline = time.monotonic() + 5
    while (found := processes()) != count and time.monotonic() < deadline: time.sleep(0.1)
    return found
"""


def test_after_detach_nobody_listens(cluster):
    code = """
import socket, threading
from course_lib.ranks import places
port = places.current()._listener.getsockname()[1]
ranks.detach()
time.sleep(0.5)
with socket.socket() as stranger:
    refused = stranger.connect_ex(("127.0.0.1", port)) != 0
say(refused=refused, left=[thread.name for thread in threading.enumerate() if "allocation" in thread.name])
"""
    assert notebook(cluster, ATTACHED + code) == [{"refused": True, "left": []}]


@pytest.mark.parametrize("moment", ["places.current()._have_dialled", "RankPool._collect"])
def test_an_interrupted_start_leaves_no_rank_behind(cluster, moment):
    """While ranks are to dial, and while they join; a start may take only 50 ms, so no clock picks the moment."""
    code = f"""
from course_lib.ranks import places
from course_lib.ranks.pool import RankPool
kept, seen = {moment}, []
def interrupt(*words):
    seen.append(settled(before + 4) - before)
    os.kill(os.getpid(), signal.SIGINT)
    return kept(*words)
before = processes()
{moment} = interrupt
ended = ""
try:
    run_ranks(int, 4)
except KeyboardInterrupt:
    ended = "interrupted"
{moment} = kept
say(ended=ended, there=seen, more=settled(before) - before)
say(healed=len(run_ranks(who, 4)))
"""
    first, second = notebook(cluster, ATTACHED + COUNTED + code)
    assert first == {"ended": "interrupted", "there": [4], "more": 0} and second["healed"] == 4


def test_a_node_that_stands_still_is_told_within_the_limit_and_five_seconds(cluster):
    """Its connections stay open, as those of a machine that swaps; with four ranks it costs no more than with one."""
    code = """
import threading
def places_of_ranks():
    return os.environ["SLURMD_NODENAME"], os.getpid(), os.getppid()
def wait():
    dist.barrier() if dist.get_rank() else time.sleep(600)
there = {pid for name, *pids in run_ranks(places_of_ranks, 8) if name == "node2" for pid in pids}
threading.Timer(0.5, lambda: [os.kill(pid, signal.SIGSTOP) for pid in there]).start()
text, took = told(wait, 8, timeout=2.0)
for pid in there:
    os.kill(pid, signal.SIGCONT)
say(text=text, took=took)
say(healed=len(run_ranks(who, 8)))
"""
    first, second = notebook(cluster, NOTEBOOK + "ranks.attach(per_node=4)\n" + code)
    assert "ranks 4, 5, 6, 7 did not answer: nothing comes from node2" in first["text"]
    assert first["took"] < 2 + 5 and second["healed"] == 8


def test_two_interrupts_in_a_second_leave_the_allocation(cluster):
    """Jupyter interrupts the kernel's whole process group; srun would end upon the second one."""
    code = """
import threading
def twice():
    os.killpg(0, signal.SIGINT)
    time.sleep(0.3)
    os.killpg(0, signal.SIGINT)
run_ranks(int, 4)
threading.Timer(1.0, twice).start()
seen = 0
while seen < 2:
    try:
        run_ranks(time.sleep, 4, 20) if not seen else time.sleep(20)
        break
    except KeyboardInterrupt:
        seen += 1
time.sleep(2)
say(seen=seen, healed=len(run_ranks(who, 4)))
"""
    leads_a_group = "import os; os.setpgid(0, 0)\n"
    assert notebook(cluster, leads_a_group + ATTACHED + code) == [{"seen": 2, "healed": 4}]


def test_a_rank_that_ends_before_it_has_dialled_is_told_at_once(cluster):
    """Such as one whose network or memory does not suffice; here it does not know the secret any more."""
    code = """
from course_lib.ranks import places
allocation = places.current()
allocation._secret, kept = bytes(32), allocation._secret
text, took = told(who)
allocation._secret = kept
say(text=text, took=took, more=settled(before) - before)
say(healed=len(run_ranks(who, 4)))
"""
    first, second = notebook(cluster, ATTACHED + COUNTED + "before = processes()\n" + code)
    assert "ended at its start" in first["text"] and "Refused" in first["text"] and "ranks.detach()" in first["text"]
    assert first["took"] < 10 and first["more"] == 0 and second["healed"] == 4
