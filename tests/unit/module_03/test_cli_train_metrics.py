"""metrics.jsonl of a training run: what a line holds, how it survives, and what MFU is a share of."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from course_lib.cli import train_run
from course_lib.cli.main import main
from course_lib.cli.train_config import read_train
from course_lib.cli.train_metrics import Metrics
from course_lib.costs.model.flops import training_flops
from course_lib.gauges.run_log import METRICS
from course_lib.hardware import load_device
from course_lib.ranks.devices import Choice
from course_lib.training.learning_rate import LearningRate
from course_lib.training.loop import Step
from tests.overrides import last_of

SMALL = ["steps=4", "batch=4", "sequence=16", "optimizer=sgd", "lr=0.1", "precision=fp64"]
STEP = Step(number=2, loss=5.5, tokens=64, seconds=0.5, learning_rate=0.1, norm=1.25, memory_bytes=2**30)
CPU = Choice(device=torch.device("cpu"), backend="gloo")
GPU = Choice(device=torch.device("cuda", 0), backend="nccl")


@pytest.fixture(autouse=True)
def short_text(monkeypatch):
    monkeypatch.setattr(train_run, "load_text", lambda: bytes(range(32, 127)) * 20)
    monkeypatch.delenv("RANK", raising=False)


def rows(folder):
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def test_each_step_has_a_line(tmp_path, capsys):
    assert main(["train", *SMALL, "max_norm=0.01", f"out={tmp_path}/run"]) == 0
    found = rows(tmp_path / "run")
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    names = ["step", "loss", "learning_rate", "gradient_norm", "tokens_per_s", "seconds", "memory_bytes", "memory"]
    assert list(found[0]) == names
    for row in found:
        assert row["tokens_per_s"] * row["seconds"] == pytest.approx(4 * 16) and row["memory_bytes"] > 2**26
        assert (row["memory"], row["learning_rate"]) == ("peak RSS", 0.1) and row["gradient_norm"] > 0.01


def test_every_tenth_line_has_each_rank_s_own_seconds(tmp_path, capsys):
    assert main(["train", *last_of(*SMALL, "steps=20"), f"out={tmp_path}/run"]) == 0
    found = {row["step"]: row["own_s"] for row in rows(tmp_path / "run") if "own_s" in row}
    assert [*found] == [10, 20] and all(len(own) == 1 and own[0] > 0 for own in found.values())


def test_the_rate_of_a_step_is_the_one_that_it_used(tmp_path, capsys):
    rate = ["lr_schedule=cosine", "warmup_steps=2"]
    assert main(["train", *SMALL, *rate, f"out={tmp_path}/run"]) == 0
    expected = LearningRate(peak=0.1, steps=4, warmup_steps=2, schedule="cosine")
    assert [row["learning_rate"] for row in rows(tmp_path / "run")] == [expected.of(n) for n in (1, 2, 3, 4)]
    assert main(["train", *last_of(*SMALL, "steps=1"), f"out={tmp_path}/one"]) == 0
    (one,) = rows(tmp_path / "one")  # the same loss, for it is taken before the update
    assert one["loss"] == rows(tmp_path / "run")[0]["loss"]


def test_going_on_drops_what_came_after_the_checkpoint(tmp_path):
    metrics = Metrics(read_train(SMALL), CPU)
    metrics.begin(tmp_path, [STEP])
    metrics.append(tmp_path, replace(STEP, number=3))
    with open(tmp_path / METRICS, "a") as file:
        file.write('{"step": 4, "lo')
    metrics.begin(tmp_path, [STEP])
    metrics.append(tmp_path, replace(STEP, number=3, norm=math.inf))
    assert [(row["step"], row["gradient_norm"]) for row in rows(tmp_path)] == [(2, 1.25), (3, None)]


@pytest.mark.parametrize(
    ("overrides", "called", "peak"),
    [
        ([], "NVIDIA H100 80GB HBM3", load_device("h100_sxm_80").peak_flops_per_s("fp32")),
        ([], "Tesla V100-SXM2-32GB", load_device("v100_sxm_32").peak_flops_per_s("fp32")),
        (
            ["zero_stage=3", "precision=bf16"],
            "NVIDIA H200",
            load_device("h200_sxm_141").peak_flops_per_s("bf16"),
        ),
        (["precision=fp64"], "NVIDIA H100 80GB HBM3", None),
        ([], "GeForce 256", None),
    ],
)
def test_mfu_is_the_model_s_operations_of_all_devices_peak(monkeypatch, overrides, called, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: called)
    run = read_train(["dp=2", *overrides])
    metrics = Metrics(run, GPU)
    if peak is None:
        assert metrics.mfu(STEP) is None and "MFU" not in metrics.progress(STEP)
        return
    step = replace(STEP, tokens=20_000_000)
    expected = training_flops(run.model, sequence=run.sequence) * 4e7 / (2 * peak)
    assert metrics.mfu(step) == pytest.approx(expected) and expected > 0.01
    assert f"  40,000,000 tokens/s  MFU {expected:.1%}  rank 0: peak GPU memory 1 GiB" in metrics.progress(step)


def test_on_a_cpu_there_is_no_peak():
    assert Metrics(read_train(["dp=2"]), CPU).mfu(STEP) is None
