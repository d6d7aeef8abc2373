"""`python -m course_lib doctor`: its lines and its exit status."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from hydra.core.global_hydra import GlobalHydra

from course_lib.cli.main import main
from course_lib.hardware import load_device
from course_lib.ranks import devices

LLAMA = ("model=llama3_1_8b", "model.vocab_size=32000", "sequence=8192")
ROOMY = "H100 SXM 80 GB offers 79.1 GiB"


def doctor(capsys, *overrides):
    status = main(["doctor", *overrides])
    out, err = capsys.readouterr()
    assert err == "" and not GlobalHydra.instance().is_initialized()
    lines = out.splitlines()
    assert lines.pop(1).startswith("ranks on this machine ")  # has a test of its own
    return status, lines


def test_a_run_that_would_run(capsys):
    assert doctor(capsys, "model=tiny_llama", "dp=2", "tp=2", "zero_stage=3", "optimizer=sgd") == (
        0,
        [
            "tiny Llama, 125 k parameters in float32; engine=own, dp=2 x tp=2, zero_stage=3, batch=16, sequence=64",
            "memory by formula: 1.401 GiB (weights 122.6 KiB, gradients 122.6 KiB, gathered weights 181 KiB, "
            "activations 2.797 MiB, head and loss 1.01 MiB, context, buffers and fragments 1.397 GiB); " + ROOMY,
            "assumed, for it was not given: precision=float32 (float32 throughout; no moments); "
            "sequence_parallel=none; recompute=none; schedule=1f1b; stack=eager; kernel=flash2 (keeps no scores); "
            "logits=12 bytes each; offload=none; norms=one kernel; 1.397 GiB of context and buffers, 6% lost between "
            f"tensors; a program can use {load_device('h100_sxm_80').usable_in_words}",
            "the same by what plan and sweep assume: 1.399 GiB (convention=megatron (bf16 weights, gradients summed in "
            "fp32, fp32 weights and moments); optimizer=adamw; compute_dtype=bf16; sequence_parallel=regather; "
            "stack=megatron; kernel=cudnn (keeps no scores); logits=8 bytes each)",
            "it would run",
        ],
    )


def test_what_does_not_fit_is_said_with_the_flags_that_make_it_fit(capsys):
    status, lines = doctor(capsys, *LLAMA, "dp=2", "tp=2", "batch=2")
    heading, stays, memory, assumed, usual, *ways, verdict = lines
    assert assumed.startswith("assumed, for it was not given: precision=float32 (float32 throughout); optimizer=ad")
    assert (status, verdict) == (1, "it would not run on H100 SXM 80 GB")
    assert heading.endswith("; engine=own, dp=2 x tp=2, batch=2, sequence=8192")
    assert stays.startswith("stays replicated: each of dp=2 ranks has all weights, gradients and optimizer's states")
    assert memory.startswith(
        "memory by formula: 112.9 GiB (weights 13.49 GiB, gradients 13.49 GiB, optimizer 26.98 GiB,"
    )
    assert memory.endswith(ROOMY)
    assert ways == ["would fit with recompute=layers: 66.16 GiB", "would fit with sequence=3093: 79.1 GiB"]


def test_its_advice_can_be_followed(capsys):
    """In the words of the command: what it says would fit, it takes and lets run."""
    asked = [*LLAMA, "dp=8", "batch=8"]
    status, lines = doctor(capsys, *asked)
    ways = [line.removeprefix("would fit with ").rpartition(":")[0] for line in lines if line.startswith("would fit")]
    assert status == 1 and ways
    for way in ways:
        changed = {word.partition("=")[0]: word for word in (*asked, *shlex.split(way))}
        assert doctor(capsys, *changed.values())[0] == 0


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("tp=3",), "does not divide: 32 heads over tp=3; nearest that divide: tp=2 and tp=4"),
        (
            ("tp=16", "engine=torch"),
            "does not divide: 8 heads of keys and values over tp=16; nearest that divide: tp=8",
        ),
        (("pp=64", "batch=64"), "cannot be built: train: 64 stages, Llama 3.1 8B has 34 layers"),
        (("model=mixtral_8x7b", "+model.gated_ffn=false"), "cannot be built: MoEDecoder: gated_ffn=False, "),
    ],
)
def test_what_cannot_be_cut_or_built_would_not_run(capsys, overrides, line):
    status, lines = doctor(capsys, *{word.partition("=")[0]: word for word in (*LLAMA, *overrides)}.values())
    assert (status, lines[-1]) == (1, "it would not run, whatever the memory")
    assert any(found.startswith(line) for found in lines[1:-1])


def test_copies_of_heads_and_uneven_parts_are_no_obstacle(capsys):
    status, lines = doctor(capsys, "model=tiny_llama", "model.n_kv_heads=1", "tp=4", "model.ffn_size=99")
    assert status == 0
    assert "stays replicated: each head of keys and values, of 1, is on 4 of tp=4 ranks" in lines
    uneven = "99 features of the feed-forward over tp=4, some ranks have one more; nearest that divide: tp=1"
    assert f"divides unevenly: {uneven}" in lines


def test_the_device_is_chosen_and_another_strategy_named(capsys):
    shared = ("dp=2", "zero_stage=3", "strategy=HYBRID_SHARD", "shards=1")
    _, lines = doctor(capsys, "model=tiny_llama", *shared, "device=v100_sxm_32")
    (memory,) = (line for line in lines if line.startswith("memory"))
    assert memory.startswith("memory by formula, as if strategy=FULL_SHARD and not HYBRID_SHARD: ")
    assert memory.endswith("V100 SXM2 32 GB offers 31.74 GiB")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("device=gpu",), "load_device: name='gpu'; there is no such device; choose one of "),
        (("steps=0",), "train: steps=0; steps is positive; give steps >= 1"),
        (("ranks=2",), "doctor: ranks=2; a training run has no 'ranks'; choose from model, dp, "),
    ],
)
def test_what_is_no_run_is_one_line_on_stderr(capsys, overrides, message):
    assert main(["doctor", *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(message) and err.count("\n") == 1


@pytest.mark.parametrize(
    ("gpus", "asked", "line"),
    [
        (0, "", "compute on cpu: COURSE_LIB_DEVICE is not set, torch sees no GPU"),
        (0, "cuda", "cannot start: COURSE_LIB_DEVICE=cuda, torch sees no GPU"),
        (1, "cuda", "compute on cuda: COURSE_LIB_DEVICE=cuda, torch sees 1 GPU"),
        (4, "cpu", "compute on cpu: COURSE_LIB_DEVICE=cpu, torch sees 4 GPUs"),
    ],
)
def test_it_says_what_ranks_would_compute_on(monkeypatch, capsys, gpus, asked, line):
    monkeypatch.setattr(devices, "gpus_here", lambda: gpus)
    monkeypatch.setenv("COURSE_LIB_DEVICE", asked)
    main(["doctor", "model=tiny_llama"])
    assert capsys.readouterr().out.splitlines()[1] == f"ranks on this machine {line}"


def test_its_arithmetic_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import course_lib.costs.sweep.advice"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
