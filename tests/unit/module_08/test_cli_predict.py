"""`python -m course_lib predict`: a line for every row, a reason where there is no prediction, never a crash."""

from __future__ import annotations

import csv
import json
import random

import pytest

from course_lib.cli.main import main
from course_lib.sim.predict import COLUMNS

ROW = {
    "id": "mine-1",
    "source_key": "mine",
    "kind": "training",
    "source": {"title": "torchtitan on our cluster"},
    "model": {
        "name": "Llama 8B",
        "hidden": 4096,
        "layers": 32,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocab": 128256,
    }
    | {"gated_mlp": True},
    "hardware": {"gpu": "H100-80GB", "gpus": 64, "gpus_per_node": 8, "interconnect": "8x400 Gb/s InfiniBand"},
    "parallel": {"dp": 64, "tp": 1, "pp": 1, "cp": 1, "sharding": "FSDP2 (ZeRO-3)"},
    "batch": {"micro": 2, "global": 128, "seq": 8192},
    "precision": "bf16, torch.compile",
    "recompute": "full",
    "measured": {"step_time_s": 3.0},
}


def predict(capsys, tmp_path, rows, *more):
    runs, out = tmp_path / "runs.json", tmp_path / "out.csv"
    runs.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    status = main(["predict", f"runs={runs}", f"out={out}", *more])
    printed, err = capsys.readouterr()
    found = list(csv.DictReader(out.read_text().splitlines())) if out.exists() else []
    return status, printed, err, found


def test_a_row_gets_step_interval_memory_and_what_was_used(capsys, tmp_path):
    status, printed, err, (row,) = predict(capsys, tmp_path, [ROW])
    assert (status, err, tuple(row)) == (0, "", COLUMNS)
    step = float(row["step_s"])
    assert float(row["low_s"]) < step < float(row["high_s"])
    assert float(row["tokens_per_s_per_gpu"]) == pytest.approx(128 * 8192 / 64 / step, rel=1e-4)
    assert 0.3 < float(row["mfu"]) < float(row["hfu"]) < 0.7
    categories = [float(row[name]) for name in row if name.startswith("memory_") and name != "memory_total_gb"]
    assert float(row["memory_total_gb"]) == pytest.approx(sum(categories), rel=1e-4) and row["fits"] == "yes"
    assert "matmul.H100" in row["constants"] and "stack.torch compiled" in row["constants"]
    assert row["reason"] == "" and "1 of 1 rows predicted" in printed and "median error" in printed


def test_what_a_row_leaves_open_is_said(capsys, tmp_path):
    bare = {key: value for key, value in ROW.items() if key not in ("recompute", "source", "measured")}
    bare["hardware"] = {"gpu": "H100-80GB", "gpus": 64}
    bare["parallel"] = {"tp": 1, "pp": 1}
    bare["precision"] = "bf16"
    _, _, _, (row,) = predict(capsys, tmp_path, [bare])
    for what in ("network of", "8 GPUs per node", "dp 64 from the GPUs", "unknown software stack", "no recompute"):
        assert what in row["assumed"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hardware": {"gpu": "TPU v4", "gpus": 64}}, "no data sheet for the GPU 'TPU v4'"),
        ({"model": ROW["model"] | {"hidden": None}}, "lacks model.hidden"),
        (
            {"model": ROW["model"] | {"name": "Hybrid Mamba"}},
            "a hybrid with Mamba layers: there is no formula for them",
        ),
        ({"parallel": ROW["parallel"] | {"tp": 3}}, "dp=64 x tp=3 x pp=1 x cp=1 is 192, not 64 GPUs"),
        (
            {"batch": {"micro": 3, "global": 128, "seq": 8192}},
            "dp=64 x micro-batch 3 does not divide the global batch 128",
        ),
        (
            {"parallel": {"tp": 1, "pp": 64, "dp": 1}},
            "a pipeline of pp=64 and its virtual stages are more than 32 layers",
        ),
        ({"precision": "nvfp4"}, "the GPU 'H100-80GB' multiplies no numbers of 4 bits"),
        ({"precision": "int8"}, "no constants for the number format 'int8'"),
        ({"kind": "layer_timing"}, "of the kind layer_timing, which is no training step"),
        ({"measured": {"step_time_s": -1}}, "measured step_time_s=-1 is not a positive number"),
        ({"model": []}, "model is not an object of fields"),
        ({"hardware": None}, "lacks hardware"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(capsys, tmp_path, change, reason):
    status, _, _, (row,) = predict(capsys, tmp_path, [ROW | change])
    assert (status, row["step_s"]) == (0, "") and row["reason"].startswith(reason)


def test_rows_that_are_no_rows_are_kept_as_lines_with_a_reason(capsys, tmp_path):
    status, _, err, found = predict(capsys, tmp_path, '[null, 1, [], {}, "a", {"id": 3, "model": {"hidden": NaN}}]')
    assert (status, err, len(found)) == (0, "", 6) and all(row["reason"] and not row["step_s"] for row in found)


def test_no_value_of_any_field_crashes_it(capsys, tmp_path):
    """Each field in turn becomes something that it should not be; every row keeps its line."""
    odd, drawn = [None, "", "x", -1, 0, 1.5, 10**400, [], {}, True, float("inf")], random.Random(5)
    rows = []
    for part, value in ROW.items():
        for key in value if isinstance(value, dict) else ():
            rows += [ROW | {part: {**value, key: drawn.choice(odd)}} for _ in range(4)]
        rows += [ROW | {part: other} for other in odd]
    status, _, err, found = predict(capsys, tmp_path, rows)
    assert (status, err, len(found)) == (0, "", len(rows))
    assert all(bool(row["step_s"]) != bool(row["reason"]) for row in found)


def test_own_measured_rows_rescale_the_others(capsys, tmp_path):
    _, _, _, (plain,) = predict(capsys, tmp_path, [ROW])
    slow = [ROW | {"measured": {"step_time_s": 1.3 * float(plain["step_s"])}}] * 3
    own = tmp_path / "mine.json"
    own.write_text(json.dumps(slow))
    status, printed, _, (scaled,) = predict(capsys, tmp_path, [ROW], f"calibrate={own}")
    assert status == 0 and "3 measured runs of your own: every predicted step x 1.2" in printed
    assert 1.2 < float(scaled["step_s"]) / float(plain["step_s"]) < 1.3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["runs=a.json"],
            "predict: without out; runs are read from a file and predictions written to one; out=FILE.csv",
        ),
        (["runs=no.json", "out=o.csv"], "predict: runs='no.json'; cannot be read: No such file or directory"),
        (["file=a"], "predict: file=a; a prediction has no 'file'; choose from runs, out, calibrate"),
    ],
)
def test_mistakes_are_said_in_four_parts(capsys, arguments, said):
    assert main(["predict", *arguments]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_files_without_rows_are_refused(capsys, tmp_path):
    for text, said in (("{", "is not JSON"), ('{"a": 1}', "has no list of rows")):
        status, _, err, _ = predict(capsys, tmp_path, text)
        assert status == 2 and said in err
    (tmp_path / "none.json").write_text("[]")
    status, _, err, _ = predict(capsys, tmp_path, [ROW], f"calibrate={tmp_path / 'none.json'}")
    assert status == 2 and "none of its rows has a measured step" in err
