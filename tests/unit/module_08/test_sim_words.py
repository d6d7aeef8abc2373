"""What the words of a published run are read as: its software, its sharding, what it computes again."""

from __future__ import annotations

import pytest

from course_lib.costs.sweep.software import DEEPSPEED, UNKNOWN, Software
from course_lib.sim.boundaries import fits
from course_lib.sim.constants import constant_names, load_constants
from course_lib.sim.policies import RECOMPUTE
from course_lib.sim.runs import Run, read_run
from course_lib.sim.stacks import words_of


def row(title="", precision="bf16", sharding=None, recompute=None, notes=""):
    return {
        "source": {"title": title},
        "precision": precision,
        "notes": notes,
        "recompute": recompute,
        "parallel": {"sharding": sharding},
    }


@pytest.mark.parametrize(
    ("title", "precision", "generation", "tp", "found"),
    [
        ("NVIDIA DGX Cloud performance recipes", "fp8", "H100", 4, ("megatron", "cudnn", "nemo", True)),
        ("NeMo launcher", "bf16", "A100", 8, ("megatron", "flash2", "nemo", False)),
        ("NVIDIA DGX Cloud", "bf16 (JAX/MaxText)", "H100", 1, ("compiled", "cudnn", "maxtext", False)),
        ("llm-foundry benchmarks", "amp_bf16", "H100", 1, ("eager", "flash2", "foundry", False)),
        ("Megatron-LM README 2020", "fp16 mixed", "V100", 8, ("legacy", "scores", "megatron 2020", False)),
        ("BLOOM, Megatron-DeepSpeed, 2022", "bf16", "A100", 4, ("legacy", "scores", "megatron 2021", False)),
        ("Megatron-LM on our cluster", "bf16", "H100", 4, ("megatron", "cudnn", UNKNOWN, False)),
        ("torchtitan", "bf16, torch.compile", "H100", 1, ("compiled", "flash2", "torch compiled", False)),
        ("torchtitan", "fp8, eager", "H100", 1, ("eager", "flash2", "torch eager", True)),
        ("an essay", "bf16", "H100", 1, ("eager", "flash2", UNKNOWN, False)),
        ("an essay", "bf16", "H100", 8, ("megatron", "cudnn", UNKNOWN, False)),
    ],
)
def test_a_stack_is_known_by_its_words(title, precision, generation, tp, found):
    software = words_of(row(title, precision), generation=generation, tp=tp).software
    assert (software.kind, software.kernel, software.stack, software.fp8) == found


@pytest.mark.parametrize(
    ("notes", "generation", "kernel"),
    [
        ("kernel: flash_attention2 + RMS kernel; 1F1B schedule", "A100", "flash2"),
        ("kernel: flash_attentionv1.0.8; 1F1B schedule", "A100", "flash1"),
        ("kernel: fused; 1F1B schedule", "A100", "scores"),
        ("kernel: torch; 1F1B schedule", "H100", "scores"),
        ("FlashAttention-3", "H100", "flash2"),
        ("", "H100", "cudnn"),
    ],
)
def test_a_kernel_that_is_named_counts_more_than_a_stack_s_usual_one(notes, generation, kernel):
    asked = row("efficient layouts", sharding="ZeRO-1", notes=notes)
    software = words_of(asked, generation=generation, tp=2).software
    assert (software.kind, software.kernel, software.stack) == ("megatron", kernel, UNKNOWN)


@pytest.mark.parametrize(
    ("title", "sharding", "pp", "found"),
    [
        ("efficient layouts", "ZeRO-1", 1, ("megatron", UNKNOWN)),
        ("efficient layouts", "FULL_SHARD", 1, ("eager", UNKNOWN)),
        ("efficient layouts", "FSDP", 4, ("megatron", UNKNOWN)),
        ("DeepSpeed blog", "ZeRO-3", 1, ("eager", DEEPSPEED)),
        ("DeepSpeed blog", "ZeRO-1", 4, ("megatron", UNKNOWN)),
    ],
)
def test_all_layouts_of_an_unknown_sweep_are_of_one_kind(title, sharding, pp, found):
    asked = row(title, sharding=sharding)
    asked["parallel"]["pp"] = pp
    kinds = {words_of(asked, generation="A100", tp=tp).software for tp in (1, 2, 8)}
    assert [(software.kind, software.stack) for software in kinds] == [found]


def test_what_nobody_knows_to_be_hidden_is_exposed():
    unknown, deepspeed, tuned = (
        constant_names("A100", Software(kind="eager", stack=stack)) for stack in (UNKNOWN, DEEPSPEED, None)
    )
    values = load_constants().values
    for names, exposed in ((unknown, ("tp",)), (deepspeed, ("tp", "dp")), (tuned, ())):
        assert tuple(axis for axis in ("tp", "dp") if names[f"{axis}_exposed"] not in values) == exposed


@pytest.mark.parametrize(
    ("sharding", "found"),
    [
        ("FSDP FULL_SHARD (ZeRO-3)", (3, None)),
        ("FSDP HYBRID_SHARD (HSDP)", (3, 8)),
        ("FSDP 128 x DP 16 (hybrid)", (3, 128)),
        ("FSDP SHARD_GRAD_OP (ZeRO-2)", (2, None)),
        ("ZeRO-1 within 4 ranks of a node (hybrid)", (1, 4)),
        ("distributed optimizer (ZeRO-1)", (1, None)),
        ("none (DDP)", (0, None)),
    ],
)
def test_sharding_is_read_as_a_stage_and_its_ranks(sharding, found):
    words = words_of(row("torchtitan", sharding=sharding), generation="H100", tp=1)
    assert (words.zero_stage, words.shards) == found and words.assumed == ()


@pytest.mark.parametrize(
    ("title", "recompute", "found"),
    [
        ("torchtitan", "full", "layers"),
        ("torchtitan", "none", "none"),
        ("torchtitan", "selective (layer)", "half"),
        ("torchtitan", "selective (per-op SAC)", "operators"),
        ("NeMo", "selective", "attention"),
        ("NeMo", "not stated", None),
        ("NeMo", None, None),
    ],
)
def test_recompute_means_what_its_stack_means_by_it(title, recompute, found):
    assert words_of(row(title, recompute=recompute), generation="H100", tp=1).recompute == found
    assert found is None or found in RECOMPUTE


def test_a_pipeline_without_stages_on_a_rank_is_said_to_be_plain():
    found = read_run(
        row("Megatron Core")
        | {
            "model": {"hidden": 4096, "layers": 32, "heads": 32, "vocab": 32000, "ffn": 16384},
            "hardware": {"gpu": "H100-80GB", "gpus": 16, "gpus_per_node": 8, "interconnect": "8x400 Gb/s"},
            "parallel": {"tp": 2, "pp": 4, "sharding": "distributed optimizer", "sp": True},
            "batch": {"micro": 1, "global": 32, "seq": 4096},
        }
    )
    assert isinstance(found, Run)
    assert set(found.assumed) == {"1F1B with one stage on each rank", "dp 2 from the GPUs", "no recompute"}


def test_a_layout_that_went_out_of_memory_is_a_run_as_well():
    found = read_run(
        row("efficient layouts", sharding="ZeRO-1", recompute="none")
        | {
            "kind": "memory_feasibility",
            "model": {"hidden": 6656, "layers": 60, "heads": 52, "vocab": 128000, "ffn": 17920, "gated_mlp": True},
            "hardware": {"gpu": "A100-80GB", "gpus": 64, "gpus_per_node": 8},
            "parallel": {"tp": 1, "pp": 1, "sharding": "ZeRO-1"},
            "batch": {"micro": 4, "global": 512, "seq": 8192},
            "measured": {"oom": True},
        }
    )
    assert isinstance(found, Run) and found.out_of_memory and found.step_s is None and not fits(found)


def test_a_stack_that_nobody_knows_gets_less_room_and_whole_logits():
    asked = row("efficient layouts", sharding="ZeRO-1", recompute="full") | {
        "model": {"hidden": 6656, "layers": 60, "heads": 52, "vocab": 128000, "ffn": 17920, "gated_mlp": True},
        "hardware": {"gpu": "A100-80GB", "gpus": 64, "gpus_per_node": 8},
        "parallel": {"tp": 4, "pp": 16, "sharding": "ZeRO-1"},
        "batch": {"micro": 4, "global": 512, "seq": 8192},
    }
    unknown, tuned = read_run(asked), read_run(asked | {"source": {"title": "NeMo"}})
    assert isinstance(unknown, Run) and isinstance(tuned, Run)
    assert unknown.room_bytes == 0.85 * tuned.room_bytes == 0.85 * tuned.machine.memory_bytes
    logits = 4 * 8192 * 128_000 * 14  # on each of the four ranks along tp
    assert unknown.memory().head[0] > logits > 4 * tuned.memory().head[0]
    assert "every rank along tp makes all logits" in unknown.assumed and fits(tuned) and not fits(unknown)
