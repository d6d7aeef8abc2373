"""Jobs of `python -m course_lib slurm` on a real Slurm: accepted, run to the same numbers, and what they live through.

A rank dies, a node dies, the time is up: the job goes on from its checkpoint each time, to the same numbers.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import time
from contextlib import redirect_stdout, suppress

import psutil
import pytest

from course_lib.cli import train_run
from course_lib.cli.main import main
from course_lib.presets import names
from course_lib.training import step_folders

TRAIN = ["dp=2", "tp=2", "zero_stage=3", "steps=40", "batch=4", "sequence=16", "model=tiny_gpt", "checkpoint_every=10"]
JOB = ["nodes=2", "gpus_per_node=2", "time=00:30:00", *TRAIN]
# A rank for each task, without torchrun: what it would say is known to Slurm.
BY_SRUN = f"""\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=$((10000 + SLURM_JOB_ID))
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=2 \\
    exec python -m course_lib train {shlex.join(TRAIN)} out=by_srun'
"""
DONE_S = 150.0  # a job of four ranks on two cores, most of which start Python


def script(*overrides):
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["slurm", *overrides]) == 0
    return out.getvalue()


def submitted(cluster, folder, name, text):
    """The number of a job."""
    (folder / f"{name}.sh").write_text(text)
    ran = cluster.run("sbatch", "--parsable", f"{name}.sh", folder=folder)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def state(cluster, job):
    return re.search(r"JobState=(\w+)", cluster.says("scontrol", "show", "job", job))[1]


def said(folder, job):
    """What a job has written so far."""
    return "".join(path.read_text() for path in folder.glob(f"*-{job}.out"))


def wait_for(cluster, folder, job, name):
    """Until a job has ended well."""
    cluster.wait_for(lambda: state(cluster, job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), DONE_S)
    log = said(folder, job)
    assert state(cluster, job) == "COMPLETED", log
    return log


def steps(folder, name):
    """All that does not depend on the clock."""
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row["learning_rate"], row["gradient_norm"]) for row in rows]


@pytest.mark.parametrize("name", names("job"))
def test_every_shipped_script_is_accepted(cluster, tmp_path, monkeypatch, name):
    monkeypatch.setattr(train_run, "load_text", lambda: bytes(20_000_000))
    monkeypatch.setattr(train_run, "tokens_of", lambda text, vocab_size: text)
    (tmp_path / "job.sh").write_text(script(f"job={name}"))
    ran = cluster.run("sbatch", "--test-only", "job.sh", folder=tmp_path)
    assert ran.returncode == 0 and "to start at" in ran.stderr, ran.stderr


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory):
    """What all nodes see."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def whole(cluster, shared_folder):
    """A job by torchrun and one by srun, side by side, to their ends."""
    jobs = {"by_torchrun": script(*JOB, "out=by_torchrun"), "by_srun": BY_SRUN}
    numbers = {name: submitted(cluster, shared_folder, name, text) for name, text in jobs.items()}
    return {name: wait_for(cluster, shared_folder, number, name) for name, number in numbers.items()}


def test_by_torchrun_and_by_srun_four_ranks_on_two_nodes_train_alike(whole, shared_folder, tmp_path):
    assert "engine=own, dp=2 x tp=2 on 4 ranks" in whole["by_torchrun"]
    by_torchrun, by_srun = (steps(shared_folder, name) for name in ("by_torchrun", "by_srun"))
    assert by_torchrun == by_srun and len(by_torchrun) == 40
    one_device = [word for word in TRAIN if not word.startswith(("dp", "tp", "zero", "steps"))]
    assert main(["train", *one_device, "steps=3", f"out={tmp_path}/alone"]) == 0
    for found, want in zip(by_torchrun, steps(tmp_path, "alone"), strict=False):
        assert found == pytest.approx(want, rel=1e-3)  # float32, and Adam makes a sign of what is small


def test_a_job_whose_node_dies_is_requeued_and_goes_on_from_its_checkpoint(cluster, whole, shared_folder):
    job = submitted(cluster, shared_folder, "killed", script(*JOB, "out=killed"))
    cluster.wait_for(lambda: step_folders.latest(shared_folder / "killed") is not None, DONE_S)
    cluster.kill_node("node2")
    cluster.wait_for(lambda: state(cluster, job) == "PENDING", DONE_S)  # Slurm asks a node twice before it is dead
    cluster.wait_for_nodes(2)
    cluster.run("scontrol", "update", f"jobid={job}", "StartTime=now")  # instead of the two minutes that it waits
    log = wait_for(cluster, shared_folder, job, "killed")
    assert re.search(r"goes on after step [123]0 of 40, from killed", log)
    assert "Restarts=1" in cluster.says("scontrol", "show", "job", job)
    assert steps(shared_folder, "killed") == steps(shared_folder, "by_torchrun")


def test_preflight_looks_at_both_nodes_by_srun(cluster, tmp_path):
    words = [
        "srun",
        "--nodes=2",
        "--ntasks-per-node=2",
        "python",
        "-m",
        "course_lib",
        "preflight",
        f"folder={tmp_path}",
    ]
    ran = cluster.run(*words, folder=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"hosts +node\d \(ranks 0, 1\), node\d \(ranks 2, 3\)", ran.stdout)  # of three nodes any two
    assert f"ok     folder      {tmp_path}: every rank found the files of all 4" in ran.stdout
    assert "look   interfaces  ranks 0-3: node1 takes its own name for 127.0.0.1" in ran.stdout  # one machine is all
    check_sweep(ran.stdout, ranks=4)
    for what in ("inside", "between"):  # two nodes, and two links from one to the other
        line = rf"^(ok|look) +{what} +busbw of 2 links \S+ to \S+ GB/s at 16 MiB"
        assert re.search(line, ran.stdout, re.MULTILINE), ran.stdout


def check_sweep(told, ranks):
    """Each line's bandwidths follow from its bytes and its time, no sum is wrong, the verdict is the best line's."""
    rows = re.findall(r"^ +(\d+) +(\d+) +float +sum +([\d.]+) +([\d.]+) +([\d.]+) +(\d+)$", told, re.MULTILINE)
    assert [int(nbytes) for nbytes, *_ in rows] == [2**10, 2**14, 2**18, 2**22, 2**24]
    for nbytes, count, us, algbw, bus, wrong in rows:
        assert int(count) * 4 == int(nbytes) and wrong == "0"
        gb_per_s = int(nbytes) / float(us) / 1e3
        assert float(algbw) == pytest.approx(gb_per_s, rel=1e-3, abs=6e-4)  # three decimals are printed
        assert float(bus) == pytest.approx(gb_per_s * 2 * (ranks - 1) / ranks, rel=1e-3, abs=6e-4)
    best = max(rows, key=lambda row: float(row[4]))
    verdict = re.search(
        rf"ok +wires +busbw ([\d.]+) GB/s at (\S+) MiB on {ranks} ranks of 2 hosts$", told, re.MULTILINE
    )
    assert verdict, told
    assert float(verdict[1]) == pytest.approx(float(best[4]), rel=1e-2)
    assert float(verdict[2]) * 2**20 == int(best[0])


def test_a_killed_rank_costs_no_place_in_the_queue(cluster, whole, shared_folder):
    """torchrun on both nodes starts all ranks again, though only one of the two has seen one die by a signal."""
    job = submitted(cluster, shared_folder, "restarted", script(*JOB, "out=restarted"))
    cluster.wait_for(lambda: step_folders.latest(shared_folder / "restarted") is not None, DONE_S)
    (rank,) = ranks_of(job, 3)
    rank.kill()
    log = wait_for(cluster, shared_folder, job, "restarted")
    # An agent that finds the other one waiting, before its own ranks have failed, counts and tells no attempt.
    told = r"(?m)goes on after step [123]0 of 40, from restarted(; torchrun's attempt [12] of 4)?$"
    assert re.search(told, log), log
    assert "Restarts=0" in cluster.says("scontrol", "show", "job", job)
    assert steps(shared_folder, "restarted") == steps(shared_folder, "by_torchrun")


def ranks_of(job, number):
    """The processes that are this rank of a job."""
    mine = {"SLURM_JOB_ID": job, "RANK": str(number)}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if mine.items() <= process.environ().items() and "course_lib" in process.cmdline():
                yield process


def test_a_job_whose_time_is_up_writes_a_checkpoint_and_queues_again(cluster, whole, shared_folder):
    endless = [word for word in JOB if not word.startswith(("steps", "checkpoint"))]
    text = script(*endless, "out=in_time", "steps=1000000", "checkpoint_every=null")
    started = time.monotonic()
    job = submitted(cluster, shared_folder, "in_time", text)
    metrics = shared_folder / "in_time" / "metrics.jsonl"
    cluster.wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 40, DONE_S)
    minutes = 2 + int(time.monotonic() - started) // 60  # within the last two the ranks are told
    cluster.run("scontrol", "update", f"jobid={job}", f"TimeLimit={minutes}")
    cluster.wait_for(lambda: state(cluster, job) == "PENDING", DONE_S)
    saved = step_folders.step_of(step_folders.latest(shared_folder / "in_time"))
    assert saved >= 40 and steps(shared_folder, "in_time")[:40] == steps(shared_folder, "by_torchrun")
    cluster.wait_for(lambda: "comp" not in cluster.says("sinfo", "-h", "-o", "%t"))  # its nodes have let go of it
    cluster.run("scontrol", "update", f"jobid={job}", "StartTime=now+5", "TimeLimit=30")
    cluster.wait_for(lambda: f"goes on after step {saved} of 1000000" in said(shared_folder, job), DONE_S)
    cluster.run("scancel", job)
    assert "the job's time is nearly up: it stops after this step" in said(shared_folder, job)
