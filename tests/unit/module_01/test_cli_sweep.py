"""`python -m course_lib sweep`: what it composes, prints, writes and refuses."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from course_lib.cli.main import main
from course_lib.cli.sweep import COLUMNS, SHOWN
from course_lib.cli.sweep_config import OPTIONS, read_sweep
from course_lib.config import LLAMA_3_1_8B, load_model, parse_model
from course_lib.costs import Exploration, Grid, as_csv, explore
from course_lib.hardware import Device, load_device
from course_lib.units import GiB
from tools.paths import ROOT

LLAMA = "model=llama3_1_405b"
PUBLISHED = (  # micro-batches, strategy, total, states, activations
    ("512.0", "NO_OP", "7372.49", "6803.58", "568.91"),
    ("256.0", "NO_OP", "7941.40", "6803.58", "1137.82"),
    ("128.0", "NO_OP", "9079.22", "6803.58", "2275.64"),
    ("512.0", "FULLY_SHARD", "1324.86", "755.95", "568.91"),
)
PRINTED = ("num_of_micro_batches", "data_parallel_sharding_strategy", "total_memory_gb")
PRINTED += ("model_and_optimizer_states_memory_gb", "activations_memory_gb")
EXPLORER_COLUMNS = """name ngpus TP PP EP CP DP sub_seq_length micro_batch_size num_of_micro_batches
    pipeline_parallelism_bubble_rate data_parallel_sharding_strategy total_memory_gb
    model_and_optimizer_states_memory_gb activations_memory_gb fits token_imbalance_hypothesis"""


def run(*overrides, cwd):
    """The command as one types it, in a folder of its own."""
    command = [sys.executable, "-m", "course_lib", "sweep", *overrides]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )


def test_the_command_reproduces_the_published_rows_and_saves_its_configuration(tmp_path):
    done = run(LLAMA, "convention=explorer-2024", "out=FILE.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["FILE.csv", "FILE.yaml"]  # and no folder of logs
    rows = list(csv.DictReader((tmp_path / "FILE.csv").read_text().splitlines()))
    found = [tuple(row[name] for name in PRINTED) for row in rows if (row["ngpus"], row["DP"]) == ("8", "8")]
    assert set(PUBLISHED) <= set(found)
    assert set(EXPLORER_COLUMNS.split()) <= set(rows[0])
    assert {row["memory_unit"] for row in rows} == {"GiB"}
    fitting = sum(row["fits"] == "True" for row in rows)
    assert len(rows) == 2880 and 0 < fitting < 2880
    assert done.stdout.splitlines() == [
        "Llama 3.1 405B: convention explorer-2024, sequences of 8192 tokens, 4096 of them in a global batch",
        f"2,880 of 11,520 combinations are legal; {fitting} fit into H100 SXM 80 GB, 79.10 GiB usable",
        "written: FILE.csv and FILE.yaml",
    ]


def test_the_saved_configuration_gives_the_table_again(tmp_path, capsys):
    out = tmp_path / "mine.csv"
    asked = ["model=llama3_1_8b", "model.n_layers=8", "device=a100_sxm_40", "gpus=[8,16]", "cp=1", f"out={out}"]
    assert main(["sweep", *asked]) == 0
    text = out.with_suffix(".yaml").read_text()
    command, saved = text.splitlines()[0], yaml.safe_load(text)
    assert shlex.split(command.removeprefix("# "))[4:] == asked
    exploration = Exploration(
        device_bytes=int(saved["device"]["usable_gib"] * GiB),
        **{name: saved[name] for name in ("sequence", "global_batch", "convention", "token_imbalance")},
    )
    axes = ("gpus", "tp", "pp", "cp", "zero_stages", "microbatches")
    grid = Grid(ep=saved["ep"], **{axis: tuple(saved[axis]) for axis in axes})
    assert as_csv(explore(parse_model(saved["model"]).config, exploration, grid)) == out.read_text()
    assert (saved["gpus"], saved["cp"], saved["global_batch"]) == ([8, 16], [1], 4096)
    assert set(saved) == {"model", "device", *OPTIONS}


def test_overrides_reach_the_sweep():
    config = read_sweep(
        ["model=llama3_1_8b", "+model.n_experts=4", "device=h200_sxm_141", "device.memory_gb=100", "token_imbalance=2"]
        + ["tp=[2,4]", "ep=2", "sequence=4096", "global_batch=64", "convention=megatron"]
    )
    assert config.model == replace(LLAMA_3_1_8B, n_experts=4)
    unseen = {"usable_gib": None, "usable_source": Device.usable_source}  # the log is of another card
    assert config.device == replace(load_device("h200_sxm_141"), memory_gb=100, **unseen)
    assert config.exploration == Exploration(
        sequence=4096, global_batch=64, convention="megatron", token_imbalance=2.0, device_bytes=100 * 10**9
    )
    assert config.grid == Grid(tp=(2, 4), ep=(2,))


def test_without_overrides_the_sweep_is_the_library_s():
    config = read_sweep([LLAMA])
    assert (config.exploration, config.grid) == (Exploration(), Grid())
    assert (config.device, config.out) == (load_device("h100_sxm_80"), None)


@pytest.mark.parametrize(
    ("overrides", "model", "global_batch"),
    [
        (["model=grok_1", "convention=explorer-2024"], "grok_1_explorer", 2048),
        (["convention=explorer-2024", "model=grok_1", "global_batch=1024"], "grok_1_explorer", 1024),
        (["model=grok_1"], "grok_1", 4096),
        (["model=grok_1_explorer"], "grok_1_explorer", 2048),
        (["model=llama3_1_70b", "convention=explorer-2024"], "llama3_1_70b", 4096),
    ],
)
def test_the_explorer_s_convention_takes_its_own_grok(overrides, model, global_batch):
    config = read_sweep(overrides)
    assert (config.model, config.exploration.global_batch) == (load_model(model), global_batch)


def test_without_a_file_it_prints_a_short_table(capsys):
    assert main(["sweep", LLAMA]) == 0
    first, assumed, order, heading, *rows, last = capsys.readouterr().out.splitlines()
    assert first == "Llama 3.1 405B: convention megatron, sequences of 8192 tokens, 4096 of them in a global batch"
    assert order == "GiB per GPU; fewest GPUs first"
    assert heading.split() == list(COLUMNS)
    assert len(rows) == SHOWN
    gpus = [int(row.split()[0]) for row in rows]
    assert gpus == sorted(gpus) and {row.split()[-1] for row in rows} == {"yes"}
    fitting = sum(row.fits for row in explore(load_model("llama3_1_405b"), Exploration()))
    assert last == (f"2,880 of 11,520 combinations are legal; {fitting} fit into H100 SXM 80 GB, 79.10 GiB usable")


def test_the_table_s_numbers_are_the_rows(capsys):
    assert main(["sweep", LLAMA, "gpus=16", "tp=8", "pp=2", "cp=1", "zero_stages=0", "microbatches=[2,1]"]) == 0
    _, _, order, _, *lines, _ = capsys.readouterr().out.splitlines()
    assert order == "GiB per GPU; least memory first"
    grid = Grid(gpus=(16,), tp=(8,), pp=(2,), cp=(1,), zero_stages=(0,), microbatches=(1, 2))
    for line, row in zip(lines, explore(load_model("llama3_1_405b"), Exploration(), grid), strict=True):
        memory = (row.model_and_optimizer_states_memory_gb, row.activations_memory_gb, row.total_memory_gb)
        degrees = ["16", "8", "2", "1", "1", "1", str(row.micro_batch_size), "NO_OP"]
        bubble = f"{1 / row.num_of_micro_batches:.4f}"
        assert line.split() == [*degrees, bubble, *(f"{value:.2f}" for value in memory), "no"]


def test_nothing_legal_says_which_rule_excluded_how_many(capsys):
    assert main(["sweep", LLAMA, "gpus=8", "pp=[4,8]", "cp=1", "zero_stages=3", "microbatches=1"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "sweep: Llama 3.1 405B: of 8 combinations none is legal; excluded 5 by 'GPUs divide by tp x pp x cp', "
        "3 by 'layers divide by pp'; widen the axis that the first rule names\n",
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "sweep: no model; a sweep is of one model; give model=NAME, one of deepseek_v2, "),
        (["model=gpt4"], "sweep: model='gpt4'; neither a preset nor a folder; choose one of deepseek_v2, "),
        (["device=tpu"], "load_device: name='tpu'; there is no such device; choose one of a100_sxm_40, "),
        (["~model"], "sweep: ~model; a sweep needs all its values; give model another value"),
        ([LLAMA, "model=olmo_1b"], "sweep: model=olmo_1b; a sweep has one model; give model=NAME once"),
        (["model@mine=olmo_1b"], "sweep: model@mine=olmo_1b; a sweep has one model; give model=NAME once"),
        (["sequense=1"], "sweep: sequense=1; a sweep has no 'sequense'; choose from model, device, convention, "),
        (["+hydra.verbose=true"], "sweep: +hydra.verbose=true; a sweep has no 'hydra.verbose'; choose from model, "),
        (["tp=1,2"], "sweep: tp=1,2; several values stand in brackets; write tp=[value,value]"),
        (["tp=[1,"], "sweep: 'tp=[1,'; no viable alternative at input '[1,'; write name=value"),
        (["tp"], "sweep: tp; Error parsing override 'tp'; write name=value or name=[value,value]"),
        (["a\nb"], "sweep: 'a b'; "),
        ([LLAMA, "sequence=8k"], "sweep: sequence='8k'; sequence is of whole numbers; write them without quotes and "),
        ([LLAMA, "global_batch=true"], "sweep: global_batch=True; global_batch is of whole numbers; write them "),
        ([LLAMA, "sequence=0"], "sweep: sequence=0; sequence is positive; give sequence >= 1"),
        ([LLAMA, "tp=[1,2.0]"], "sweep: tp=2.0; tp is of whole numbers; write them without quotes and units"),
        ([LLAMA, "tp=[]"], "Grid: tp=(); an axis has values, whole and none below 1; give tp=(1, ...)"),
        ([LLAMA, "tp=null"], "sweep: tp=None; tp is of whole numbers; write them without quotes and units"),
        ([LLAMA, "tp=0"], "Grid: tp=(0,); an axis has values, whole and none below 1; give tp=(1, ...)"),
        ([LLAMA, "zero_stages=4"], "ParallelConfig: zero_stage=4; ZeRO has the stages 1 to 3; choose 0 (none), 1, "),
        ([LLAMA, "token_imbalance=nan"], "sweep: token_imbalance=nan; token_imbalance is a number; give token_imb"),
        ([LLAMA, "token_imbalance=0.5"], "sweep: token_imbalance=0.5; the busiest expert has at least its share; "),
        ([LLAMA, "convention=mine"], "sweep: convention='mine'; nobody counts so; choose one of explorer-2024, half, "),
        ([LLAMA, "convention=[fp32]"], "sweep: convention=['fp32']; nobody counts so; choose one of explorer-2024, "),
        ([LLAMA, "model.n_heads=3"], "ModelConfig 'Llama 3.1 405B': n_heads=3; n_heads divides hidden_size=16384; "),
        (
            [LLAMA, "model.experts=3"],
            "sweep: model=llama3_1_405b model.experts=3; Could not override 'model.experts'; ",
        ),
        ([LLAMA, "+model.experts=3"], "model preset 'Llama 3.1 405B': key 'experts'; not a field of ModelConfig; "),
        ([LLAMA, "+model.biases=1"], "model preset 'Llama 3.1 405B': biases=1; biases is a list; list some of qkv, "),
        ([LLAMA, "+device.size=1"], "sweep: device.size; not a field of Device; choose from cuda_name, date, "),
        ([LLAMA, "device.memory_gb=80GB"], "sweep: device.memory_gb='80GB'; device.memory_gb is of whole numbers; "),
        ([LLAMA, "device.memory_gb=0"], "sweep: device.memory_gb=0; memory is positive; give device.memory_gb >= 1"),
        ([LLAMA, "out=table"], "sweep: out='table'; the table is CSV, with its configuration beside it in .yaml; "),
        ([LLAMA, "out=no/such.csv"], "sweep: out='no/such.csv'; there is no folder 'no'; make it, or name another"),
        (["model=gpt3_175b"], "ModelConfig 'GPT-3 175B': sequence=8192; its table of learned positions has 2048 "),
    ],
)
def test_a_mistake_is_one_line_in_four_parts(capsys, overrides, message):
    assert main(["sweep", *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(message)
    assert err.count("\n") == 1 and err.count("; ") >= 2
    assert not GlobalHydra.instance().is_initialized()


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "a.csv").mkdir()
    assert main(["sweep", LLAMA, f"out={tmp_path}/a.csv"]) == 2
    err = capsys.readouterr().err
    assert err == f"sweep: out='{tmp_path}/a.csv'; cannot be written: Is a directory; name another file\n"


def test_a_mistake_ends_the_process_with_status_2_and_no_traceback(tmp_path):
    done = run("model=llama3_1_8b", "tp=3", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sweep: Llama 3.1 8B: of 2,880 combinations none is legal; excluded 2,880 by ")
    assert len(done.stderr.splitlines()) == 1 and list(tmp_path.iterdir()) == []


def test_a_sweep_does_not_wait_for_torch():
    code = "import sys; from course_lib.cli.main import main; main(['sweep', 'model=olmo_1b']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.splitlines()[-1].split()
