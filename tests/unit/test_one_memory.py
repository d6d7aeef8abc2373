"""One job, one number: `doctor`, `plan`, `sweep` and `predict` asked about thirty jobs, each by its own settings."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass

import pytest

from course_lib.cli.doctor import asked_of
from course_lib.cli.main import main
from course_lib.cli.plan_config import read_plan
from course_lib.cli.sweep_config import read_sweep
from course_lib.cli.train_config import read_train
from course_lib.costs.sweep.explore import explore
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.planner.policy_search import search
from course_lib.sim.predict import predict_rows
from course_lib.units import GB, GiB


@dataclass(frozen=True)
class Asked:
    """What jobs have in common; the course's trainer keeps all in fp32 and writes its attention in PyTorch."""

    model: str
    gpus: int
    batch: int
    sequence: int
    recompute: str = "none"
    shared: str = "none"  # sequences, where tp > 1
    half: bool = False  # computed in bf16, which `train` does under ZeRO-3
    optimizer: str = "adamw"


LAYOUTS = {  # tp, pp, ZeRO's stage, sequences of a micro-batch
    Asked("llama3_1_8b", 32, 64, 8192): [(4, 1, 1, 1), (4, 1, 3, 1), (8, 1, 0, 2), (2, 4, 1, 2), (1, 2, 0, 1)],
    Asked("llama3_1_8b", 32, 64, 4096, half=True, shared="keep"): [(t, 1, 3, n) for t in (2, 4, 8) for n in (1, 2)],
    Asked("llama3_1_8b", 16, 32, 8192, half=True, shared="regather"): [(2, 1, 3, 1), (4, 1, 3, 2), (8, 1, 3, 4)],
    Asked("llama3_2_1b", 8, 64, 2048, recompute="layers"): [(1, 1, 2, 8), (2, 1, 1, 4), (1, 4, 0, 2), (2, 2, 1, 8)],
    Asked("llama3_1_70b", 64, 64, 8192, recompute="layers", shared="keep"): [(8, 1, 3, 1), (8, 4, 1, 2), (4, 8, 0, 1)],
    Asked("olmo_7b", 16, 64, 2048, optimizer="sgd"): [(1, 1, 3, 4), (2, 1, 2, 8), (4, 2, 1, 2), (1, 8, 1, 4)],
    Asked("gpt3_small", 8, 64, 1024): [(1, 1, 0, 8), (2, 1, 3, 2), (4, 2, 0, 4), (1, 4, 1, 1), (1, 1, 1, 4)],
}
EACH = [(asked, layout) for asked, layouts in LAYOUTS.items() for layout in layouts]


def by_doctor(asked, layout):
    tp, pp, zero, micro = layout
    dp = asked.gpus // (tp * pp)
    parts = asked.batch // (dp * micro)
    words = [f"model={asked.model}", f"dp={dp}", f"tp={tp}", f"pp={pp}", f"zero_stage={zero}", f"batch={asked.batch}"]
    words += [f"sequence={asked.sequence}", f"optimizer={asked.optimizer}", f"recompute={asked.recompute}"]
    words += [f"microbatches={parts}" if pp > 1 else f"accumulation={parts}"]
    words += [f"sequence_parallel={asked.shared}"] if tp > 1 and asked.shared != "none" else []
    words += ["precision=bf16"] if asked.half else []
    return gpu_memory(asked_of(read_train(words, lambda ranks: None)).counted).total


def common(asked):
    """What `plan` and `sweep` call alike."""
    compute = "bf16" if asked.half else "fp32"
    words = [f"model={asked.model}", f"sequence={asked.sequence}", "cp=1", "convention=fp32", "stack=eager"]
    return [*words, f"sequence_parallel={asked.shared}", f"compute_dtype={compute}", f"optimizer={asked.optimizer}"]


def several(values):
    return f"[{','.join(map(str, dict.fromkeys(values)))}]"


def by_sweep(asked, layouts):
    tp, pp, zero, micro = map(several, zip(*layouts, strict=True))
    words = [f"gpus={asked.gpus}", f"global_batch={asked.batch}", f"recompute={asked.recompute}"]
    words += [f"tp={tp}", f"pp={pp}", f"zero_stages={zero}", f"microbatches={micro}"]
    config = read_sweep([*common(asked), *words])
    strategies = ("NO_OP", "OPTIMIZER_STATES", "OPTIMIZER_STATES_AND_GRADS", "FULLY_SHARD")
    return {
        (row.TP, row.PP, strategies.index(row.data_parallel_sharding_strategy), row.micro_batch_size): (
            row.total_memory_gb * GiB
        )
        for row in explore(config.model, config.exploration, config.grid)
    }


def by_plan(asked, layout):
    tp, pp, zero, micro = layout
    words = [f"tp={tp}", f"pp={pp}", f"zero_stage={zero}", f"micro_batch={micro}", f"batch={asked.batch}"]
    words += [f"recompute={asked.recompute}", "schedule=1f1b", "cluster=dgx_h100"]
    config = read_plan([*common(asked), *words, f"cluster.n_nodes={asked.gpus // 8}"])
    found = search(config.job, config.space)
    if found.nearest is None:
        return float(found.memory_bytes[0])
    assert found.nearest.broken == ("memory",)
    return found.job.room_bytes + found.nearest.lacking_bytes


def row(asked, layout):
    """For `predict`."""
    tp, pp, zero, micro = layout
    code = {"convention": "fp32", "stack": "eager", "kernel": "flash2", "optimizer": asked.optimizer}
    compute = {"compute_dtype": "bf16" if asked.half else "fp32", "sequence_parallel": asked.shared}
    return {
        "model": {"preset": asked.model},
        "hardware": {"gpu": "H100-80GB", "gpus": asked.gpus, "gpus_per_node": 8},
        "parallel": {"tp": tp, "pp": pp, "sharding": f"ZeRO-{zero}" if zero else "none"},
        "batch": {"micro": micro, "global": asked.batch, "seq": asked.sequence},
        "recompute": "full" if asked.recompute == "layers" else "none",
        "code": code | compute,
    }


def test_there_are_thirty_jobs_and_no_two_need_the_same():
    assert len(EACH) == 30


@pytest.mark.parametrize("asked", LAYOUTS, ids=lambda asked: f"{asked.model} on {asked.gpus}")
def test_four_commands_answer_one_number(asked):
    layouts = LAYOUTS[asked]
    swept = by_sweep(asked, layouts)
    predicted = predict_rows([row(asked, layout) for layout in layouts])
    for layout, said in zip(layouts, predicted, strict=True):
        expected = by_doctor(asked, layout)
        assert swept[layout] == pytest.approx(expected, rel=1e-12), layout
        assert by_plan(asked, layout) == pytest.approx(expected, rel=1e-9), layout
        assert said["memory_total_gb"] * GB == pytest.approx(expected, rel=1e-9), (layout, said["reason"])
    assert len({by_doctor(asked, layout) for layout in layouts}) == len(layouts)


ASKED = ["model=llama3_1_8b", "sequence=8192"]  # dp 8 x tp 4 under ZeRO-3, a sequence on each: no assumption given
COMMANDS = {
    "doctor": [*ASKED, "dp=8", "tp=4", "zero_stage=3", "batch=8"],
    "plan": [*ASKED, "cluster=dgx_h100", "cluster.n_nodes=4", "tp=4", "pp=1", "cp=1", "zero_stage=3", "batch=8"],
    "sweep": [*ASKED, "gpus=32", "tp=4", "pp=1", "cp=1", "zero_stages=3", "microbatches=1", "global_batch=8"],
}
COMMANDS["plan"] += ["micro_batch=1", "recompute=none", "schedule=1f1b", "retime=0"]
FIGURE = {
    "doctor": r"the same by what plan and sweep assume: ([\d.]+) GiB",
    "plan": r"memory of the first, .*\n +for 5% more time at most: ([\d.]+) GiB",
    "sweep": r"FULLY_SHARD +[\d.]+ +[\d.]+ +[\d.]+ +([\d.]+)",
}


def test_what_is_printed_for_a_job_without_assumptions_is_one_number_and_says_all_it_rests_on(capsys):
    printed = {}
    for command, words in COMMANDS.items():
        main([command, *words])
        out = capsys.readouterr().out
        (printed[command],) = re.findall(FIGURE[command], out)
        (line,) = re.findall("assumed, for it was not given: (.*)", out)
        for name in ("optimizer", "stack", "kernel", "logits", "offload", "norms", "buffers", "can use 79.1"):
            assert name in line, command
    assert len({*printed.values()}) == 1, printed


@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_what_is_given_is_not_assumed_and_counts(command, capsys):
    told = ["stack=eager", "kernel=scores", "optimizer=adamw8bit", "offload=optimizer", "logits=4", "weights=fp32"]
    main([command, *COMMANDS[command], *told])
    (line,) = re.findall("assumed, for it was not given: (.*)", capsys.readouterr().out)
    for name in ("convention", "stack", "kernel", "optimizer", "offload", "logits"):
        assert f"{name}=" not in line
    assert "compute_dtype=bf16" in line and "sequence_parallel=keep" in line


def test_predict_says_what_a_row_does_not(tmp_path):
    asked = next(iter(LAYOUTS))
    plain, told = row(asked, LAYOUTS[asked][0]), row(asked, LAYOUTS[asked][0])
    del plain["code"]
    runs, out = tmp_path / "runs.json", tmp_path / "out.csv"
    runs.write_text(json.dumps([plain, told]))
    assert main(["predict", f"runs={runs}", f"out={out}"]) == 0
    first, second = (record["assumed"] for record in csv.DictReader(out.read_text().splitlines()))
    assert "convention=" in first and "kernel=" in first and "logits=" in first
    assert "convention=" not in second and "kernel=" not in second and "logits=12 bytes each" in second
