"""`python -m course_lib plan`: what it composes, prints, writes and refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from course_lib.cli.main import main
from course_lib.cli.plan_config import read_plan
from course_lib.cli.train_checks import check_shape
from course_lib.cli.train_config import read_train
from course_lib.config import LLAMA_3_1_8B, load_model
from course_lib.hardware import load_cluster
from course_lib.models.bridge_config import transformers_config
from course_lib.planner import RULES, Space, ranked, search, toy_of
from course_lib.sim.nearest import FAR
from course_lib.units import format_seconds
from tools.paths import ROOT

LLAMA = ["model=llama3_1_8b", "cluster=dgx_h100"]
FEW = ["micro_batch=1", "recompute=none", "schedule=1f1b", "batch=64", "retime=6"]


def test_the_best_are_printed_with_their_causes_and_the_rest_with_its_rules(tmp_path, capsys):
    out = tmp_path / "plan.json"
    assert main(["plan", *LLAMA, *FEW, "cluster.n_nodes=2", f"out={out}"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Llama 3.1 8B on 16 x H100 SXM 80 GB (DGX H100); 64 sequences of 8,192 tokens in a step\n")
    values = json.loads(out.read_text())
    first, second = values["best"][:2]
    assert f"1. {first['name']}\n" in said and f"2. {second['name']}\n" in said
    assert f"   {second['why_slower']}\n" in said and second["why_slower"] and first["why_slower"] is None
    for one in values["best"][:3]:
        is_far = one["nearest"]["distance"] > FAR
        known = "no published run is near" if is_far else "it held four of five unseen runs"
        ends = f"{format_seconds(one['low_s'])} to {format_seconds(one['high_s'])}"
        assert f"   {format_seconds(one['step_s'])} a step (likely {ends}: {known})" in said
        assert f"   nearest published run: {one['nearest']['model']} on {one['nearest']['gpu']}, of " in said
    assert sum(first["causes_s"].values()) == pytest.approx(first["step_s"])
    assert sum(first["memory"].values()) == pytest.approx(first["memory_bytes"])
    assert values["tried"] == values["possible"] + sum(one["count"] for one in values["rejected"].values())
    for rule, one in values["rejected"].items():
        assert (f" out: {RULES[rule]}" in said) == (one["count"] > 0)
    off = sorted(abs(one["exact_s"] / one["closed_s"] - 1) for one in values["retimed"])
    said_off = f"the best 6 differ from the closed form by {(off[2] + off[3]) / 2:.1%} in the middle, "
    assert len(off) == 6 and said_off in said
    front = [(one["memory_bytes"], one["step_s"]) for one in values["front"]]
    assert front == sorted(front) and [s for _, s in front] == sorted((s for _, s in front), reverse=True)
    assert f"train {' '.join(values['train'])}\n" in said and said.endswith(f"written: {out}\n")


def test_nothing_possible_is_status_1_with_the_nearest(tmp_path, capsys):
    out = tmp_path / "plan.json"
    assert main(["plan", "model=llama3_1_405b", "cluster=dgx_h100", "batch=8", f"out={out}"]) == 1
    said = capsys.readouterr().out
    nearest = json.loads(out.read_text())["nearest"]
    assert "nothing is possible; what comes nearest:\n" in said and f"  {nearest['name']}\n" in said
    assert nearest["broken"] == [RULES["memory"]] and nearest["lacking_bytes"] > 5e11
    assert re.search(r"it lacks [\d.]+ GiB of 74.35 GiB on its fullest GPU", said)


def test_a_plan_is_told_that_products_are_in_8_bits(capsys):
    """Faster where a published run has computed so, as large as in bf16, and refused where none has."""
    said = {}
    for word in ("bf16", "fp8"):
        assert main(["plan", *LLAMA, *FEW, "tp=1", "pp=1", "cp=1", "zero_stage=3", f"compute_dtype={word}"]) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if " a step (" in line)
        said[word] = float(line.split()[0]), re.search(r"([\d.]+ GiB) \(fits", line)[1]
    assert said["fp8"][0] < 0.8 * said["bf16"][0] and said["fp8"][1] == said["bf16"][1]
    assert main(["plan", "model=llama3_1_8b", "cluster=dgx_a100", *FEW, "compute_dtype=fp8"]) == 2
    assert "sim: FP8 on A100; no published run has computed so there; choose bf16" in capsys.readouterr().err


def test_overrides_reach_the_plan():
    config = read_plan(
        ["model=gpt3_175b", "model.n_layers=48", "cluster=dgx_a100", "cluster.n_nodes=4", "tp=[4,8]", "zero_stage=1"]
        + ["cluster.card.bandwidth_bytes_per_s=1e9", "cluster.cards=4", "schedule=[1f1b,zb-h1]"]
    )
    job = config.job
    assert job.model == replace(load_model("gpt3_175b"), n_layers=48)
    assert (job.cluster.n_gpus, job.cluster.between.bandwidth_bytes_per_s) == (32, 0.5e9)
    assert (job.sequence, job.batch) == (2048, 2048)  # what it was made for; four million tokens
    assert config.space == Space(tp=(4, 8), zero_stage=(1,), schedule=("1f1b", "zb-h1"))
    assert read_plan(LLAMA).space == Space() and read_plan(LLAMA).job.cluster == load_cluster("dgx_h100")


def test_a_folder_of_hugging_face_is_planned_by_its_shape(tmp_path, capsys):
    transformers_config(LLAMA_3_1_8B).save_pretrained(tmp_path)
    config = read_plan([f"model={tmp_path}", "cluster=dgx_h100"])
    assert replace(config.job.model, name="") == replace(LLAMA_3_1_8B, name="")
    assert main(["plan", f"model={tmp_path}", "model.n_layers=2", "cluster=dgx_h100"]) == 2
    assert capsys.readouterr().err.startswith(
        "plan: model.n_layers=2; the folder says its model's shape; leave it out,"
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "plan: no model; a plan is for one model; give model=NAME, one of deepseek_v2, "),
        (["model=olmo_1b"], "plan: no cluster; a plan is for one cluster; give cluster=NAME, one of aws_l40s, "),
        (
            ["model=gpt9", "cluster=dgx_h100"],
            "plan: model='gpt9'; neither a preset nor a folder; choose one of dee",
        ),
        (["model=olmo_1b", "cluster=moon"], "load_cluster: name='moon'; there is no such cluster; choose one of aws_l"),
        ([*LLAMA, "cluster.n_nodes=0"], "ClusterSpec 'DGX H100': n_nodes=0; a cluster has nodes, GPUs and network ca"),
        ([*LLAMA, "cluster.n_nodes=2.5"], "cluster: n_nodes=2.5; n_nodes is of whole numbers; write it without quotes"),
        ([*LLAMA, "cluster.card.bandwidth_bytes_per_s=0"], "Link: alpha_s=1.4e-05, bandwidth_bytes_per_s=0; a late"),
        ([*LLAMA, "cluster.inside.alpha_s=fast"], "cluster: inside.alpha_s='fast'; alpha_s is a number; write it with"),
        ([*LLAMA, "cluster.inside.alpha_s=inf"], "Link: alpha_s=inf, bandwidth_bytes_per_s=450000000000.0; a latency"),
        ([*LLAMA, "cluster.inside.bandwidth_bytes_per_s=nan"], "Link: alpha_s=3.4e-06, bandwidth_bytes_per_s=nan; a "),
        ([*LLAMA, "cluster.inside=5"], "cluster: inside=5; a link has fields; give one, as inside.bandwidth_bytes_per"),
        ([*LLAMA, "+cluster.size=3"], "cluster: key 'size'; not a field of ClusterSpec; choose from name, device, "),
        ([*LLAMA, "cluster.device=tpu"], "load_device: name='tpu'; there is no such device; choose one of a100_sxm_4"),
        ([*LLAMA, "model.n_heads=0"], "ModelConfig 'Llama 3.1 8B': n_heads=0; sizes are positive; give n_heads >= 1"),
        ([*LLAMA, "batch=0"], "plan: batch=0; a step has sequences, and a sequence tokens; give batch >= 1"),
        ([*LLAMA, "batch=many"], "plan: batch='many'; batch is of whole numbers; write them without quotes and units"),
        ([*LLAMA, "sequence=0"], "plan: sequence=0; a step has sequences, and a sequence tokens; give sequence >= 1"),
        ([*LLAMA, "schedule=interleaved", "stages_per_rank=1"], "plan: schedule=('interleaved',) with stages_per_rank"),
        ([*LLAMA, "schedule=best"], "plan: schedule=('best',); schedule takes one or several from gpipe, 1f1b, "),
        ([*LLAMA, "tp=two"], "plan: tp='two'; tp is of whole numbers; write them without quotes and units"),
        ([*LLAMA, "retime=-1"], "plan: retime=-1; it is a number of policies; give retime >= 0"),
        ([*LLAMA, "out=plan.csv"], "plan: out='plan.csv'; the plan is JSON; give out=NAME.json"),
        ([*LLAMA, "train=no/such"], "plan: train='no/such'; there is no folder 'no'; make it, or name another"),
        (
            ["model=gpt3_175b", "cluster=dgx_h100", "sequence=4096"],
            "ModelConfig 'GPT-3 175B': sequence=4096; its table",
        ),
    ],
)
def test_a_mistake_is_one_line_in_four_parts(capsys, overrides, message):
    assert main(["plan", *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(message)
    assert err.count("\n") == 1 and err.count("; ") >= 2


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "a.json").mkdir()
    assert main(["plan", *LLAMA, *FEW, f"out={tmp_path}/a.json"]) == 2
    assert (
        capsys.readouterr().err
        == f"plan: out='{tmp_path}/a.json'; cannot be written: Is a directory; name another file\n"
    )


@pytest.mark.parametrize(
    ("model", "cluster", "narrowed"),
    [
        ("llama3_1_405b", ["cluster.n_nodes=2048"], []),
        ("llama3_1_8b", [], ["pp=1", "tp=1", "cp=1", "zero_stage=3", "recompute=layers"]),
        ("llama3_1_8b", [], ["tp=8"]),
        ("llama3_1_8b", [], ["pp=4", "schedule=zb-h1"]),
        ("mixtral_8x7b", ["cluster.n_nodes=4"], ["schedule=gpipe"]),
    ],
)
def test_the_likeness_of_every_shape_is_a_run_that_train_takes(model, cluster, narrowed):
    config = read_plan([f"model={model}", "cluster=dgx_h100", *cluster, *narrowed])
    for one in ranked(search(config.job, config.space), 12):
        toy = toy_of(one.policy)
        run = read_train(toy.overrides)
        check_shape(run)
        left_out = [words.partition("=")[0] for words in toy.left_out]
        for axis in ("pp", "dp", "cp", "ep", "tp"):
            assert (getattr(run.parallel, axis) > 1) == (one.policy[axis] > 1 and axis not in left_out)
        assert run.ranks <= 8


def test_the_winner_s_likeness_is_trained_on_ranks(tmp_path, capsys):
    small = ["model=olmo_1b", "cluster=dgx_h100", "cluster.gpus_per_node=2", "batch=8", "tp=2", "cp=1", "retime=0"]
    assert main(["plan", *small, f"train={tmp_path / 'toy'}"]) == 0
    said = capsys.readouterr().out
    assert "tp=2 on 2 ranks" in said and "tp=2" in said.partition("small enough for this machine: ")[2].split("\n")[0]
    losses = [json.loads(line)["loss"] for line in (tmp_path / "toy" / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]


def test_a_plan_does_not_wait_for_torch():
    code = f"import sys; from course_lib.cli.main import main; main({['plan', *LLAMA, *FEW]}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "scipy"} & set(done.stdout.splitlines()[-1].split())
