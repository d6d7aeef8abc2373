"""Ranks of a notebook on two nodes of a real Slurm: the same cells, reports and promises as on a laptop."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time

import pytest

from tools.paths import LEARNER, ROOT, python_of

PYTHON = str(python_of(LEARNER))
NOTEBOOK = """
import json, os, signal, sys, time
import torch, torch.distributed as dist
from course_lib import comm, ranks
from course_lib.ranks import RankError, ledger, run_ranks

def told(function, world_size=4, timeout=2.0):
    started = time.monotonic()
    try:
        run_ranks(function, world_size, timeout=timeout)
    except (RankError, OSError) as error:
        return str(error), time.monotonic() - started
    return "", time.monotonic() - started

def who():
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    return os.environ["SLURMD_NODENAME"], int(os.environ["LOCAL_RANK"]), total.item()

def say(**words):
    print(json.dumps(words), flush=True)

"""
ATTACHED = NOTEBOOK + "ranks.attach(per_node=2)\n"


def in_job(*words):
    return ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", *words]


def said(ran):
    """What a notebook said, one line after the other; salloc ends with 0 where an interrupt has ended its command."""
    assert ran.returncode == 0 and "\nKeyboardInterrupt" not in ran.stderr, ran.stdout + ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def notebook(cluster, code, *words):
    return said(cluster.run(*(words or in_job()), PYTHON, "-c", code))


def quiet(cluster):
    """Whether no job and no rank is left."""
    left = subprocess.run(["pgrep", "-f", "course_lib.ranks.node"], capture_output=True, text=True).stdout.split()
    return not left and not cluster.says("squeue", "-h")


@pytest.mark.parametrize(("per_node", "world_size"), [(2, 4), (4, 8), (4, 6), (2, 1), (2, 6)])
def test_places_are_filled_one_node_after_the_other_and_what_is_sent_is_recorded(cluster, per_node, world_size):
    code = f"""ranks.attach(per_node={per_node})
say(found=run_ranks(who, {world_size}))
run_ranks(lambda: comm.all_reduce(torch.ones(1000), algorithm="ring"), {world_size})
say(sent=[ledger().bytes_sent(rank) for rank in range({world_size})])
"""
    found, sent = notebook(cluster, NOTEBOOK + code)
    total = sum(range(world_size))
    each = max(per_node, world_size // 2)  # of more ranks than places every node takes more
    places = [(f"node{1 + rank // each}", rank % each, total) for rank in range(world_size)]
    assert [tuple(place) for place in found["found"]] == places
    assert sum(sent["sent"]) == 2 * (world_size - 1) * 4000
    cluster.wait_for(lambda: quiet(cluster))


def test_a_running_job_is_joined_from_outside_and_left_as_it_was(cluster):
    job = cluster.says("sbatch", "--parsable", "--nodes=2", "--output=/dev/null", "--wrap=sleep 600")
    cluster.wait_for(lambda: cluster.says("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING")
    code = f"""ranks.attach(per_node=2, job={job})
say(found=run_ranks(who, 3))
ranks.detach()
say(here=run_ranks(lambda: os.environ.get("SLURMD_NODENAME"), 2))
"""
    found, here = notebook(cluster, NOTEBOOK + code, "env")
    assert [place[0] for place in found["found"]] == ["node1", "node1", "node2"] and here["here"] == [None, None]
    assert cluster.says("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING"
    cluster.run("scancel", job)
    cluster.wait_for(lambda: quiet(cluster))


def test_nodes_are_asked_for_and_given_back(cluster):
    code = """ranks.attach(per_node=1, nodes=2, srun=["--partition=gpu"])
say(found=run_ranks(who, 2))
ranks.detach()
"""
    (found,) = notebook(cluster, NOTEBOOK + code, "env")
    assert [place[0] for place in found["found"]] == ["node1", "node2"]
    cluster.wait_for(lambda: quiet(cluster))


def test_reports_and_healing_are_those_of_a_laptop(cluster):
    code = """
def hang():
    if dist.get_rank() == 3: dist.recv(torch.ones(1), 0)
def spin():
    while dist.get_rank() == 2: pass
def in_c():
    if dist.get_rank() == 2: sum(range(10**11))
def die():
    if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()
def fail():
    dist.all_reduce(torch.ones(1 + dist.get_rank() % 2))
for function in (hang, spin, in_c, die, fail):
    text, took = told(function)
    say(text=text, took=took, healed=len(run_ranks(who, 4)))
"""
    texts = notebook(cluster, ATTACHED + code)
    expected = [
        "not finished after 2 s: rank 3 waits in recv from 0, cell line",
        "not finished after 2 s: rank 2 still runs at cell line",
        "not finished after 2 s: rank 2 still runs at cell line",
        "(its process ended by SIGSEGV",
        "shape is (1,) on ranks 0, 2 and (2,) on ranks 1, 3",
    ]
    for found, text in zip(texts, expected, strict=True):
        assert text in found["text"].replace("line", "cell line").replace("cell cell", "cell") and found["healed"] == 4
        assert found["took"] < 2 + 5


def test_a_lost_node_is_named_within_the_limit_and_five_seconds(cluster, tmp_path):
    code = f"""
def wait():
    open("{tmp_path}/" + str(dist.get_rank()), "w").close()
    dist.barrier() if dist.get_rank() else time.sleep(600)
text, took = told(wait, timeout=20.0)
say(text=text, took=took)
say(again=told(who)[0])
"""
    running = subprocess.Popen(
        [*in_job(), "--no-kill", PYTHON, "-c", ATTACHED + code],
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    cluster.wait_for(lambda: len(list(tmp_path.iterdir())) == 4)
    cluster.kill_node("node2")
    killed = time.monotonic()
    try:
        lines = [json.loads(running.stdout.readline()) for _ in range(2)]
        assert time.monotonic() - killed < 25 + 15
        assert "node2 is lost" in lines[0]["text"] and lines[0]["took"] < 25
        assert "attach:" in lines[1]["again"] and "lost" in lines[1]["again"] and "ranks.detach()" in lines[1]["again"]
    finally:
        running.kill()
        running.communicate()
        cluster.run("scancel", "--user=root")
        cluster.bring_back("node2")


def test_a_cut_wire_is_told_and_healed(cluster):
    code = """
def cut():
    if dist.get_rank() == 3:
        import course_lib.ranks.worker, gc
        from course_lib.ranks.wire import RankEnd
        for end in [x for x in gc.get_objects() if type(x) is RankEnd]:
            end._wire.shutdown(2)  # as if the network had gone
    time.sleep(600)
text, took = told(cut, timeout=5.0)
say(text=text, took=took, healed=len(run_ranks(who, 4)))
"""
    (found,) = notebook(cluster, ATTACHED + code)
    assert "rank 3 died" in found["text"] and found["took"] < 10 and found["healed"] == 4


def test_nothing_is_left_when_the_kernel_is_killed(cluster, tmp_path):
    code = f"""
def stay():
    open("{tmp_path}/" + str(dist.get_rank()), "w").close()
    while dist.get_rank() == 1: pass
    sum(range(10**11)) if dist.get_rank() == 2 else time.sleep(600)
print(os.getpid(), flush=True)
run_ranks(stay, 4, timeout=600)
"""
    running = subprocess.Popen(
        [*in_job(), PYTHON, "-c", ATTACHED + code], env=cluster.environment, stdout=subprocess.PIPE, text=True
    )
    kernel = int(running.stdout.readline())
    cluster.wait_for(lambda: len(list(tmp_path.iterdir())) == 4)
    os.kill(kernel, 9)
    cluster.wait_for(lambda: quiet(cluster), 10.0)
    running.communicate()


def test_a_stranger_gets_nothing_and_keeps_nobody_waiting(cluster):
    """It connects to every port that the notebook listens at, before, while and after ranks start."""
    code = """
def listening():  # this process alone: srun and the machine's other programs have ports too
    mine = {os.path.realpath(f"/proc/self/fd/{name}").rpartition("socket:")[2] for name in os.listdir("/proc/self/fd")}
    lines = [line.split() for path in ("/proc/net/tcp", "/proc/net/tcp6") for line in open(path)]
    return {int(words[1].split(":")[1], 16) for words in lines if words[3] == "0A" and f"[{words[9]}]" in mine}
before = listening()
ranks.attach(per_node=2)
say(ports=sorted(listening() - before), pid=os.getpid())
sys.stdin.readline()
say(found=len(run_ranks(who, 4)))
"""
    running = subprocess.Popen(
        [*in_job(), PYTHON, "-c", NOTEBOOK + code],
        env=cluster.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    told = json.loads(running.stdout.readline())
    silent, heard = [], b""
    for port in told["ports"]:
        silent.append(socket.create_connection(("127.0.0.1", port)))  # says nothing
        with socket.create_connection(("127.0.0.1", port), timeout=3) as liar:
            liar.sendall(os.urandom(100))
            try:
                while piece := liar.recv(1000):
                    heard += piece
            except OSError:
                pass
    running.stdin.write("\n")
    running.stdin.flush()
    assert json.loads(running.stdout.readline()) == {"found": 4}
    assert len(told["ports"]) == 1 and len(heard) <= 32 * len(told["ports"])  # a random number each
    running.communicate()
    for one in silent:
        one.close()


def test_no_secret_stands_on_a_command_line_or_in_an_environment(cluster):
    code = """
from course_lib.ranks import places
secret = places.current()._secret.hex().encode()
seen = 0
for path in __import__("glob").glob("/proc/[0-9]*/cmdline") + __import__("glob").glob("/proc/[0-9]*/environ"):
    try:
        seen += secret in open(path, "rb").read()
    except OSError:
        pass
say(seen=seen, nodes=len(run_ranks(who, 4)))
"""
    assert notebook(cluster, ATTACHED + code) == [{"seen": 0, "nodes": 4}]


def test_what_cannot_be_attached_is_said_in_four_parts(cluster):
    code = """
for words in (dict(per_node=2), dict(per_node=2, job=999999), dict(per_node=99, nodes=2), dict(per_node=2, nodes=77)):
    try:
        ranks.attach(**words)
    except (ValueError, OSError) as error:
        say(text=str(error))
"""
    texts = [one["text"] for one in notebook(cluster, NOTEBOOK + code, "env")]
    starts = ["attach: this notebook runs in no Slurm job", "attach: squeue knows no running job 999999"]
    starts += ["attach: per_node=99 on 2 nodes", "attach: per_node=2 on 77 nodes"]
    assert all(text.startswith(start) and text.count(";") >= 2 for text, start in zip(texts, starts, strict=True)), (
        texts
    )


def test_a_lesson_runs_top_to_bottom(cluster, tmp_path, lesson):
    number, per_node = lesson
    environment = ["env", "COURSE_LIB_PUBLISHED=1", f"IPYTHONDIR={tmp_path}", "MPLBACKEND=agg"]
    ran = cluster.run(*in_job(), *environment, PYTHON, "-m", "tests.slurm.lesson", number, str(per_node), folder=ROOT)
    assert ran.returncode == 0 and "0 failed" in ran.stdout, ran.stdout[-3000:] + ran.stderr[-2000:]


def test_a_check_of_an_exercise_runs_on_the_nodes(cluster):
    code = """
from course_lib.checks.kit import runner
trial = runner.run_call(who, (), 4, timeout=20)
say(found=trial.reports)
"""
    (found,) = notebook(cluster, ATTACHED + code)
    assert [place[0] for place in found["found"]] == ["node1", "node1", "node2", "node2"]


def test_starting_and_cells_are_quick(cluster):
    code = """
started = time.monotonic(); run_ranks(int, 4); here = time.monotonic() - started
ranks.shutdown()
started = time.monotonic(); ranks.attach(per_node=2); run_ranks(int, 4); there = time.monotonic() - started
cells = []
for _ in range(200):
    started = time.perf_counter(); run_ranks(int, 4); cells.append(time.perf_counter() - started)
say(here=here, there=there, cell=sorted(cells)[100])
"""
    (found,) = notebook(cluster, NOTEBOOK + code)
    print(found)
    assert found["there"] < 3 * 2 * found["here"] and found["cell"] < 3 * 0.003  # three times the promise, as a slack
