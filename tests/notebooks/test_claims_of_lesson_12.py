"""What lessons 12 and 12b say in words of numbers that stand in their tables, logs and files."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import yaml

from course_lib import planner
from course_lib.config import ParallelConfig, load_model
from course_lib.costs import Software
from course_lib.hardware import load_cluster
from tools.paths import ROOT

KEMPNER = load_cluster("kempner_h100")
JOB = yaml.safe_load((ROOT / "course_lib/presets/job/olmo_7b_fsdp.yaml").read_text())["train"]
THEIRS = yaml.safe_load((ROOT / "tools/olmo/workshop.yaml").read_text())


def lesson(name: str) -> str:
    return (ROOT / f"notebooks/src/{name}.py").read_text(encoding="utf-8")


def test_so_many_steps_fit_into_a_night_at_the_slow_end():
    text = lesson("12_on_the_cluster")
    assert "So many steps fit into a night even at the slow end of what `plan` says." in text
    hours, steps = int(re.search(r'"time=(\d\d):00:00"', text)[1]), int(re.search(r'"steps=(\d+)"', text)[1])
    job = planner.Job(model=load_model(JOB["model"]), cluster=replace(KEMPNER, n_nodes=4), batch=128, sequence=2048)
    alone = dict.fromkeys(("tp", "pp", "cp", "stages_per_rank"), (1,))
    space = planner.Space(**alone, zero_stage=(3,), schedule=("1f1b",), recompute=(JOB["recompute"],))
    [best] = planner.ranked(planner.search(job, space), 1)
    assert 0.9 * 3600 * hours < steps * best.high_s < 3600 * hours


def test_how_bloom_s_norm_goes():
    text = lesson("12b_through_the_night")
    rows = re.findall(r"^# \| (31,\d\d\d) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    steps, losses, norms = zip(*((step, float(loss), float(norm)) for step, loss, norm in rows), strict=True)
    assert (
        "At 31,215 the norm is four times the usual, while the loss has hardly moved" in text and steps[1] == "31,215"
    )
    assert abs(norms[1] / norms[0] - 4) < 0.2 and losses[1] / losses[0] < 1.02
    assert "from there on it grows in every step up to the jump" in text
    jump = losses.index(max(losses))
    assert list(norms[: jump + 1]) == sorted(norms[: jump + 1])
    assert (
        "At 31,217 it is more than sixty times the usual, and the loss, which had risen by a sixth, is almost back"
        in text
    )
    assert norms[3] / norms[0] > 60 and abs(losses[2] / losses[1] - 7 / 6) < 0.01 and losses[3] / losses[0] < 1.03
    assert "Two steps later comes the jump" in text and jump == 5


def test_which_wrappings_fit_on_which_nodes():
    text = lesson("12b_through_the_night")
    fits = {}
    for name, nodes, microbatch in re.findall(r'^print_pairs\("(\w+)", (\d), (\d+)\)$', text, re.MULTILINE):
        job = planner.Job(
            model=load_model(name),
            cluster=replace(KEMPNER, n_nodes=int(nodes)),
            batch=128,
            sequence=2048,
            microbatch=int(microbatch),
            parallel=ParallelConfig(dp=4 * int(nodes)),
            recompute="layers",
            software=Software(kind="eager", kernel="flash2"),
        )
        rows = planner.wrapping_rows(job, planner.olmo_wrappings(job.model), shards=2 * int(nodes))
        fits[name.removeprefix("olmo_")[:2], nodes] = {(row.wrapping, row.strategy) for row in rows if row.fits}
        assert name != "olmo_7b_workshop" or all(row.messages_s < 0.1 * row.compute_s for row in rows if row.fits)
    assert "Of 1B all pairs fit" in text and len(fits["1b", "1"]) == 20
    assert "Of 7B no pair with `NO_SHARD` fits" in text and "so of 7B no strategy fits without it" in text
    of_7b = fits["7b", "1"] | fits["7b", "2"]
    assert not any(strategy == "NO_SHARD" or wrapping == "no_wrap" for wrapping, strategy in of_7b)
    assert "and has room on two nodes only" in text
    hybrid = {nodes: any(strategy == "HYBRID_SHARD" for _, strategy in fits["7b", nodes]) for nodes in "12"}
    assert hybrid == {"1": False, "2": True}


def test_what_our_job_file_has_as_the_workshop_s():
    text = lesson("12b_through_the_night")
    assert "has their steps, batch, written rate, weight decay and recomputation" in text
    ours = JOB["steps"], JOB["batch"], JOB["lr"], JOB["recompute"], JOB["policy"], JOB["strategy"]
    fsdp = THEIRS["fsdp"]
    assert ours == (
        THEIRS["max_duration"],
        THEIRS["global_train_batch_size"],
        THEIRS["optimizer"]["learning_rate"],
        {"whole_layer": "layers"}[THEIRS["activation_checkpointing"]],
        fsdp["wrapping_strategy"],
        fsdp["sharding_strategy"],
    )
    assert "a warm-up of 50 steps" in text and JOB["warmup_steps"] == 50
    assert "and theirs still rises at the end" in text and THEIRS["scheduler"]["t_warmup"] > THEIRS["max_duration"]


def test_the_norm_of_run_c_jumps_for_nothing():
    assert "Its picture has a jump of the norm, too, at step 31. No loss follows" in lesson("12b_through_the_night")
    page = json.loads((ROOT / "notebooks/12b_through_the_night.ipynb").read_text(encoding="utf-8"))
    shown = next(
        "".join(cell["source"]) + json.dumps(cell["outputs"]) for cell in page["cells"] if "Run C, by" in str(cell)
    )
    assert re.search(r"gradient norm: 3\.0\d+ first, [\d.]+ last, 0\.4\d+ to 4\.0\d", shown)
    assert "look: the loss" not in shown
