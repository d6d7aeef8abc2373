"""What `train`, `doctor` and `slurm` are told of cp and ep, before a rank starts."""

from __future__ import annotations

import pytest

from course_lib.cli import train_checks
from course_lib.cli.main import main
from course_lib.cli.train_config import read_train
from course_lib.config import ParallelConfig
from course_lib.costs.model.parameters import model_parameters

MOE = ["model=tiny_mixtral"]
PP = ["pp=2"]
SHARED = ["tp=2", "sequence_parallel=keep"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cp=2", "context=star"], "train: context='star'; not a known kind; choose from all_gather, ring, ulysses"),
        (["order=zigzag"], "train: order=zigzag with cp=1; it says how ranks share a sequence; leave order out, or "),
        (["cp=2", "sequence=1"], "train: sequence=1 with cp=2; every rank needs a position; give sequence >= 2, or "),
        (["cp=2", "engine=torch"], "train: engine=torch with cp=2; PyTorch's engine trains along dp and tp here; "),
        (
            ["cp=2", "tp=2", "context=ulysses", "model.n_heads=2"],
            "ulysses: 1 heads of queries, 2 ranks; every rank has a head; choose cp <= 1, or ",
        ),
        (["cp=2", *SHARED, "sequence=3"], "train: sequence=3 with cp=2, tp=2 and sequence_parallel=keep; every rank "),
        ([*MOE, "cp=2", "capacity=1.5"], "train: capacity=1.5 with cp=2; an expert takes the first tokens of a seq"),
        (
            ["cp=2", "zero_stage=3", "strategy=NO_SHARD"],
            "train: strategy=NO_SHARD with cp=2; all ranks that have the same weights share them; choose FULL_SHARD ",
        ),
        (["dp=2", "ep=2"], "train: ep=2 with tiny Llama; a layer of it has one block; leave ep out, or choose model="),
        (["balance=0.1"], "train: balance=0.1 with tiny Llama; a layer of it has one block; leave balance out, or "),
        ([*MOE, "dp=2", "ep=3"], "ParallelConfig: ep=3; ep divides dp=2; choose ep in [1, 2]"),
        ([*MOE, "dp=16", "ep=16"], "train: ep=16, 8 experts; every rank has one; choose ep in [1, 2, 4, 8]"),
        ([*MOE, "tp=2", "engine=torch"], "train: engine=torch with tp=2 and 8 experts; PyTorch's engine has every "),
        ([*MOE, *SHARED], "train: sequence_parallel=keep with 8 experts; a token is routed once, not by each rank "),
        ([*MOE, "balance=-1"], "train: balance=-1; it is added to the loss; give 0 or more"),
        ([*MOE, *PP, "balance=0.1"], "train: balance=0.1 with pp=2; the last stage alone has a loss; leave it out, "),
        ([*MOE, "+model.gated_ffn=false"], "MoEDecoder: gated_ffn=False, biases=(); its experts are SwiGLU without "),
        ([*MOE, "capacity=0"], "MoEDecoder: capacity=0; it is so many times the fair share; give a positive one, or "),
    ],
)
def test_a_mistake_is_one_line_in_four_parts(capsys, overrides, message):
    assert main(["train", *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(message)
    assert err.count("\n") == 1 and err.count("; ") >= 2


def test_what_is_unsaid_is_completed_and_what_has_no_meaning_stays_empty():
    assert [read_train(["cp=2"]).values[name] for name in ("context", "order")] == ["all_gather", "zigzag"]
    assert [read_train(["cp=2", "context=ring"]).values[name] for name in ("context", "order")] == ["ring", "zigzag"]
    assert [read_train([]).values[name] for name in ("context", "order")] == [None, None]
    run = read_train([*MOE, "dp=4", "ep=2", "cp=2"])
    assert run.parallel == ParallelConfig(dp=4, ep=2, cp=2) and run.ranks == 8
    assert run.parallel.in_words == "dp=4 x cp=2, ep=2 of dp"


@pytest.mark.parametrize(("overrides", "copies"), [(["cp=2", "dp=2"], 4), (["cp=2", "dp=2", "zero_stage=3"], 1)])
def test_ranks_along_cp_need_what_those_along_dp_do(overrides, copies):
    run = read_train(overrides)
    assert train_checks.numbers_needed(run, run.ranks) == 4 * copies * model_parameters(run.model)


def test_ranks_along_ep_need_one_model_s_experts():
    run = read_train([*MOE, "dp=4", "ep=2", "optimizer=sgd"])
    experts = 2 * 8 * 3 * 64 * 88  # layers, experts, matrices
    others = model_parameters(run.model) - experts
    assert train_checks.numbers_needed(run, run.ranks) == 2 * (4 * others + 4 // 2 * experts)
    shared = read_train([*MOE, "dp=4", "ep=2", "optimizer=sgd", "zero_stage=3"])
    assert train_checks.numbers_needed(shared, shared.ranks) == 2 * model_parameters(run.model)


DOCTOR = ["model=tiny_mixtral", "dp=6", "ep=3", "cp=2", "sequence=65"]  # nothing of it divides


def test_doctor_takes_what_train_takes_evenly_or_not(capsys):
    assert main(["doctor", *DOCTOR]) == 0
    said = capsys.readouterr().out
    assert said.startswith("tiny Mixtral, 329 k parameters in float32; engine=own, dp=6 x cp=2, ep=3 of dp, ")
    assert "each of dp=6 x cp=2 ranks has all weights" in said and said.endswith("it would run\n")


def test_doctor_knows_that_gathered_keys_stay(capsys):
    sizes = {}
    for method in ("all_gather", "ring", "ulysses"):
        main(
            [
                "doctor",
                "model=llama3_1_8b",
                "model.vocab_size=32000",
                "cp=8",
                "sequence=131072",
                "batch=1",
                f"context={method}",
            ]
        )
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("memory by formula"))
        sizes[method] = float(line.partition("activations ")[2].split()[0])
    layers, keys = 32, 2 * (131072 - 131072 // 8) * 1024 * 4 / 2**30  # K and V of the others' positions, float32
    assert sizes["ring"] == sizes["ulysses"]
    assert sizes["all_gather"] - sizes["ring"] == pytest.approx(layers * keys, abs=0.2)


def test_doctor_advises_to_share_sequences(capsys):
    asked = ["model=mixtral_8x7b", "dp=8", "ep=8", "zero_stage=3", "batch=64", "sequence=4096"]
    assert main(["doctor", *asked]) == 1
    (way,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("would fit with ")]
    flags = way.removeprefix("would fit with ").split(":")[0].split()
    assert "cp=2" in flags
    changed = {word.partition("=")[0]: word for word in (*asked, *flags)}
    assert main(["doctor", *changed.values()]) == 0


def test_slurm_writes_a_job_with_both(capsys):
    assert main(["slurm", "nodes=2", "gpus_per_node=4", *MOE, "dp=4", "ep=2", "cp=2", "context=ring"]) == 0
    said = capsys.readouterr().out
    assert "dp=4 x cp=2, ep=2 of dp" in said and "context=ring" in said
