"""What a user sees who submits a job that cannot be: refused at once, or accepted and never started."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from course_lib.cli.main import main


@pytest.fixture(scope="module")
def text():
    """A script that Slurm takes."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["slurm", "nodes=2", "gpus_per_node=2", "dp=4"]) == 0
    return out.getvalue()


@pytest.fixture
def job(tmp_path, text):
    """The folder that it is in."""
    (tmp_path / "job.sh").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--partition=gpu_big", "invalid partition specified: gpu_big"),
        ("--gpus-per-node=8", "Requested node configuration is not available"),
        ("--gpus-per-node=h100:2", "Requested node configuration is not available"),
        ("--mem=800G", "Memory specification can not be satisfied"),
        ("--gpu-per-node=2", "unrecognized option '--gpu-per-node=2'"),
        ("--time=soon", "Invalid --time specification"),
    ],
)
def test_what_slurm_refuses_at_once(cluster, job, option, says):
    ran = cluster.run("sbatch", option, "job.sh", folder=job)
    assert ran.returncode != 0 and says in ran.stderr and ran.stdout == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("\n", "\r\n"), "Batch script contains DOS line breaks"),
        (lambda text: text.removeprefix("#!/bin/bash\n"), "This does not look like a batch script"),
    ],
    ids=["DOS", "no shebang"],
)
def test_a_script_that_an_editor_spoilt(cluster, job, change, says):
    (job / "job.sh").write_text(change((job / "job.sh").read_text()), newline="")
    ran = cluster.run("sbatch", "job.sh", folder=job)
    assert ran.returncode == 1 and says in ran.stderr


@pytest.mark.parametrize(
    ("option", "reason"), [("--nodes=4", "PartitionNodeLimit"), ("--time=2:00:00", "PartitionTimeLimit")]
)
def test_what_slurm_accepts_and_never_starts(cluster, job, option, reason):
    ran = cluster.run("sbatch", "--parsable", option, "job.sh", folder=job)
    assert ran.returncode == 0
    number = ran.stdout.strip()
    cluster.wait_for(lambda: cluster.says("squeue", "-h", "-j", number, "-o", "%T %r") == f"PENDING {reason}")
    cluster.run("scancel", number)
