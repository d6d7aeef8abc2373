"""Ctrl-C, SIGTERM, SIGUSR1: a run writes a checkpoint after its step, and the same command goes on from there.

Of a rank that is killed torchrun makes a new attempt, which does the same without a command.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from course_lib.cli.main import main
from course_lib.training import step_folders
from tests.ranks.module_03.test_train_command import left_of
from tools.paths import ROOT

STEPS = 40
SMALL = ("batch=4", "sequence=16", "precision=fp32", "model=tiny_gpt", f"steps={STEPS}")
STARTED = {
    "one device": (["-m", "course_lib"], []),
    "ranks of its own": (["-m", "course_lib"], ["dp=2"]),
    "torchrun": (["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "course_lib"], ["dp=2"]),
    "torchrun, twice": (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m", "course_lib"],
        ["dp=2"],
    ),
    "pieces": (["-m", "course_lib"], ["dp=2", "zero_stage=3"]),
}
PROCESSES = {"one device": 1, "ranks of its own": 3, "torchrun": 3, "pieces": 3}  # the first, and each rank


def start(how, folder, *more):
    words, layout = STARTED[how]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "PYTHONWARNINGS"):
        environment.pop(name, None)
    names = {given.partition("=")[0] for given in more}
    asked = [given for given in (*SMALL, *layout) if given.partition("=")[0] not in names]
    command = [sys.executable, *words, "train", *asked, *more, f"out={folder}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder.parent,
        start_new_session=True,
        preexec_fn=listen_to_interrupts,
        **pipes,
    )


def listen_to_interrupts():
    """A shell that starts the tests in the background lets all their children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def when_a_step_is_done(run, folder, steps=2):
    while run.poll() is None and not ((folder / "metrics.jsonl").exists() and len(losses(folder)) >= steps):
        time.sleep(0.01)
    assert run.poll() is None, run.communicate()


def ended(run):
    """What it said; nothing of it is left."""
    return run.communicate(timeout=100)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing happens to, by layout."""
    folder, known = tmp_path_factory.mktemp("whole"), {}

    def of(how):
        layout = tuple(STARTED[how][1])
        if layout not in known:
            out = folder / str(len(known))
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("RANK", raising=False)
                assert main(["train", *SMALL, *layout, f"out={out}"]) == 0
            known[layout] = out
        return known[layout]

    return of


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ("one device", signal.SIGINT),
        ("ranks of its own", signal.SIGTERM),
        ("torchrun", signal.SIGINT),
        ("pieces", signal.SIGINT),
    ],
)
def test_it_ends_all_processes_with_one_line_and_a_checkpoint_that_is_gone_on_from(tmp_path, whole, how, number):
    parts = tmp_path / "parts"
    run = start(how, parts)
    when_a_step_is_done(run, parts)
    assert len(left_of(tmp_path)) >= PROCESSES[how]
    if number == signal.SIGINT:  # a terminal sends it to all, as torchrun hands it on once more
        os.killpg(run.pid, number)
    else:
        run.send_signal(number)
    _, errors = ended(run)
    assert run.returncode != 0 and left_of(tmp_path) == []
    kept = re.findall(r"interrupted; .* keeps step (\d+): the same command goes on from there", errors)
    assert len(kept) == 1 and step_folders.latest(parts).name == f"step-{kept[0]}", errors
    assert int(kept[0]) < STEPS and len(losses(parts)) == int(kept[0])
    again = start(how, parts)
    output, errors = ended(again)
    assert again.returncode == 0, errors
    assert f"goes on after step {kept[0]} of {STEPS}" in output
    assert losses(parts) == losses(whole(how))


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_and_no_command(tmp_path, whole):
    """torchrun ends the others, starts all again at the store that it has kept, and they meet there all the same."""
    folder = tmp_path / "run"
    run = start("torchrun, twice", folder, "checkpoint_every=10")
    when_a_step_is_done(run, folder, steps=1)
    (last,) = (rank for rank in psutil.Process(run.pid).children() if rank.environ().get("RANK") == "1")
    while step_folders.latest(folder) is None and run.poll() is None:
        time.sleep(0.01)
    last.kill()
    output, errors = ended(run)
    assert run.returncode == 0, errors
    assert re.search(rf"\ngoes on after step [123]0 of {STEPS}, from .*; torchrun's attempt 2 of 2\n", output), output
    assert "train: RuntimeError: " in errors and "the same command goes on from there" in errors, errors
    assert losses(folder) == losses(whole("torchrun")) and step_folders.latest(folder).name == f"step-{STEPS}"
    found, wanted = (torch.load(one / f"step-{STEPS}/trainer.pt")["model"] for one in (folder, whole("torchrun")))
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], one) for name, one in wanted.items())


def test_slurm_s_signal_is_heard_from_the_first_moment_and_leaves_word_for_the_job(tmp_path, whole):
    """It comes while Python imports: the run takes the step that it needs to have something to go on from."""
    folder = tmp_path / "run"
    run = start("one device", folder, f"steps={STEPS + 1}")
    while signal.SIGUSR1 not in caught(run.pid):  # which Python says before it knows what it will run
        assert run.poll() is None
        time.sleep(0.001)
    run.send_signal(signal.SIGUSR1)
    run.send_signal(signal.SIGUSR1)  # Slurm sends it to each process of a step, and torchrun hands it on
    _, errors = ended(run)
    assert run.returncode == 130 and "the job's time is nearly up: it stops after this step" in errors, errors
    assert "once more" not in errors and (folder / "TIME_IS_UP").exists() and len(losses(folder)) == 1
    again = start("one device", folder, f"steps={STEPS + 1}")
    _, errors = ended(again)
    assert again.returncode == 0 and not (folder / "TIME_IS_UP").exists(), errors
    assert losses(folder)[:STEPS] == losses(whole("one device"))


def caught(pid):
    """The signals that a process has a handler for, as Linux says it."""
    (line,) = re.findall(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return {number for number in signal.Signals if int(line, 16) >> (number - 1) & 1}


def test_once_more_stops_at_once_and_what_was_measured_stays(tmp_path):
    """A step that takes long is not waited for; the folder keeps what its steps took, and says so."""
    run = start("one device", tmp_path / "run", "batch=512", "sequence=256")
    when_a_step_is_done(run, tmp_path / "run", steps=1)
    run.send_signal(signal.SIGINT)
    assert "once more, and it stops at once" in run.stderr.readline() + run.stderr.readline()
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and "interrupted" in errors
    assert len(losses(tmp_path / "run")) >= 1 and (tmp_path / "run/config.yaml").exists()


def test_without_a_folder_it_stops_at_once(tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-m", "course_lib", "train", *SMALL[:-1], "steps=100000"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout.readline()
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and errors.strip() == "interrupted"
