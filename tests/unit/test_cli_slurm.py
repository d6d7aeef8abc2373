"""`python -m course_lib slurm`: the text of an sbatch file, and one line for what could not start as asked."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from course_lib.cli import train_run
from course_lib.cli.main import main
from course_lib.cli.slurm_config import read_job
from course_lib.cli.train_config import read_train
from course_lib.presets import names

PAIR = ["nodes=2", "gpus_per_node=2", "dp=2", "tp=2", "time=00:10:00"]


@pytest.fixture(autouse=True)
def short_text(monkeypatch):
    """Long enough for the batches of the shipped jobs; these tests are not about their vocabularies."""
    monkeypatch.setattr(train_run, "load_text", lambda: bytes(range(32, 127)) * 20_000)
    monkeypatch.setattr(train_run, "tokens_of", lambda text, vocab_size: text)


def script(capsys, *overrides):
    assert main(["slurm", *overrides]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def options(text):
    """What sbatch reads: the lines before the first command, without comments."""
    lines = text.split("\n\n")[0].splitlines()
    return [line.removeprefix("#SBATCH ").split(" ")[0] for line in lines if line.startswith("#SBATCH ")]


def command(text):
    """The words that srun gets."""
    start, end = text.index("srun "), text.index(" || status=$?")
    return shlex.split(text[start:end].replace("\\\n", " "))


def test_a_small_job_in_full(capsys):
    overrides = [*PAIR, "partition=gpu", "cpus_per_task=4", "mem=8G", "engine=torch", "zero_stage=3"]
    text = script(capsys, *overrides)
    assert text.startswith("#!/bin/bash\n# tiny Llama on 2 nodes of 2 GPUs: dp=2 x tp=2, engine=torch.\n")
    assert options(text) == [
        "--job-name=train",
        "--nodes=2",
        "--gpus-per-node=2",
        "--cpus-per-task=4",
        "--mem=8G",
        "--time=00:10:00",
        "--partition=gpu",
        "--ntasks-per-node=1",
        "--signal=USR1@120",
        "--requeue",
        "--open-mode=append",
        "--output=%x-%j.out",
    ]
    assert "\nport=$((10000 + SLURM_JOB_ID % 20000))\n" in text
    assert '\nfirst_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n' in text
    words = command(text)
    assert words[:4] == ["srun", "--kill-on-bad-exit=1", "--cpus-per-task=$SLURM_CPUS_PER_TASK", "torchrun"]
    meeting = ["--rdzv-id=$SLURM_JOB_ID", "--rdzv-backend=c10d", "--rdzv-endpoint=$first_node:$port"]
    assert words[4:9] == ["--nnodes=$SLURM_NNODES", "--nproc-per-node=2", *meeting]
    stops = ["--max-restarts=3", "--signals-to-handle=SIGTERM,SIGINT,SIGUSR1", "--shutdown-timeout=100"]
    assert words[9:12] == stops
    assert words[12:] == ["-m", "course_lib", "train", "dp=2", "tp=2", "engine=torch", "zero_stage=3", "out=train"]
    assert f"\n# Made by: python -m course_lib slurm {shlex.join(overrides)}\n" in text


def test_a_run_that_can_go_on_is_told_in_time_and_put_into_the_queue_again(capsys, tmp_path):
    """The lines after srun, run by bash: what they ask of Slurm, and the status that they leave."""
    ending = script(capsys, *PAIR, "out=my run").split("status=$?\n\n")[1]
    (tmp_path / "my run").mkdir()

    def ended():
        asked = 'scontrol() { echo "$@"; }; SLURM_JOB_ID=7; status=1;\n'
        ran = subprocess.run(["bash", "-euc", asked + ending], cwd=tmp_path, capture_output=True, text=True)
        return ran.stdout, ran.returncode, ran.stderr

    assert ended() == ("", 1, "")
    (tmp_path / "my run" / "TIME_IS_UP").touch()
    assert ended() == ("requeue 7\n", 1, "")
    assert ended() == ("", 1, "")
    without = script(capsys, *PAIR, "out=null")
    assert "USR1@" not in without and 'requeue "' not in without


def test_what_is_not_said_is_left_to_the_cluster(capsys):
    text = script(capsys)
    assert not re.search("partition|mem=|cpus", text)
    assert {"--nodes=1", "--gpus-per-node=1", "--time=01:00:00"} <= {*options(text)}


@pytest.mark.parametrize("name", names("job"))
def test_a_shipped_job_trains_what_its_preset_says(capsys, name):
    text = script(capsys, f"job={name}")
    job = read_job([f"job={name}"])
    words = command(text)
    asked = words[words.index("train") + 1 :]
    assert read_train(asked, lambda ranks: None).values == job.run.values
    assert job.run.ranks == job.values["nodes"] * job.values["gpus_per_node"]
    assert f"--job-name={name}" in options(text) and job.run.out is not None and job.run.out.name == name
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_a_shipped_job_can_be_changed(capsys):
    overrides = ["job=olmo_7b_fsdp", "nodes=1", "dp=4", "strategy=SHARD_GRAD_OP", "model.n_layers=2", "out=my run"]
    job = read_job(overrides)
    assert (job.values["nodes"], job.run.parallel.dp, job.run.model.n_layers) == (1, 4, 2)
    assert job.run.values["strategy"] == "SHARD_GRAD_OP" and job.run.recompute == "layers"
    assert "'out=my run'" in script(capsys, *overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["job=gpt5"],
            "load_job: name='gpt5'; there is no such job; choose one of llama3_70b_puhti, olmo_1b_ddp, olmo",
        ),
        (["node=2"], "slurm: node=2; a job has no 'node'; choose from job, nodes, gpus_per_node, cpus_per_task, mem, "),
        (["nodes=0"], "slurm: nodes=0; nodes is positive; give nodes >= 1"),
        (["gpus_per_node=all"], "slurm: gpus_per_node='all'; gpus_per_node is of whole numbers; write them without "),
        (["cpus_per_task=-1"], "slurm: cpus_per_task=-1; cpus_per_task is positive; give cpus_per_task >= 1"),
        (["time=90"], "slurm: time=90; sbatch takes no such time; write it as time=04:00:00 or time=1-12:00:00"),
        (["mem=lots"], "slurm: mem=lots; sbatch takes no such mem; write it as mem=360G"),
        (["partition=a b"], "slurm: partition=a b; sbatch takes no such partition; write the name that sinfo shows"),
        (
            ["nodes=2", "gpus_per_node=4", "dp=4"],
            "slurm: nodes=2 x gpus_per_node=4; a rank has a GPU, and dp x pp x cp x tp is 4; give degrees whose ",
        ),
        (
            ["nodes=4", "tp=4"],
            "slurm: tp=4 on nodes of 1 GPUs; ranks that share matrices talk in every layer, so one node has them all; "
            "choose tp in [1]",
        ),
        (["nodes=2", "gpus_per_node=3", "dp=3", "tp=2"], "slurm: tp=2 on nodes of 3 GPUs; ranks that share matrices "),
        (["nodes=3", "dp=3", "batch=2"], "train: batch=2 with dp=3; every rank needs a sequence; give batch >= 3, or "),
        (["nodes=2", "dp=2", "ep=2"], "train: ep=2 with tiny Llama; a layer of it has one block; leave ep "),
        (["gpus_per_node=3", "tp=3"], "tensor: layers.0.attention.q_proj: 4 heads on 3 ranks; a head stays whole; "),
        (["nodes=5", "pp=5", "batch=5"], "train: 5 stages, tiny Llama has 4 layers with its embedding and head; every"),
        (
            ["sequence=1900000"],
            "Batches: 1900000 tokens, sequence=1900000; a window takes sequence + 1 tokens; give a ",
        ),
        (["out=no/such"], "train: out='no/such'; there is no folder 'no'; make it, or name another"),
    ],
)
def test_a_mistake_is_one_line_in_four_parts(capsys, overrides, message):
    assert main(["slurm", *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(message)
    assert err.count("\n") == 1 and err.count("; ") >= 2
