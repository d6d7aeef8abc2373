"""What the words of a published run are read as: its software, its sharding, what it computes again."""

from __future__ import annotations

import pytest

from course_lib.costs.sweep.software import DEEPSPEED, UNKNOWN, Software
from course_lib.sim.boundaries import fits
from course_lib.sim.constants import constant_names, load_constants
from course_lib.sim.policies import RECOMPUTE, SCHEDULES
from course_lib.sim.predict import predict_rows
from course_lib.sim.priors import OF_STACKS
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
        ("BLOOM, Megatron-DeepSpeed, 2022", "bf16", "A100", 4, ("legacy", "scores", "megatron-deepspeed", False)),
        ("MLPerf Training, ND_H100_v5_n1344_pytorch", "fp8", "H100", 4, ("megatron", "cudnn", "nemo", True)),
        ("nanotron benchmark summary", "bf16", "H100", 4, ("eager", "flash2", "nanotron", False)),
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


def test_a_stack_has_three_constants_of_its_own_and_one_without_a_name_those_of_its_kind_s_best_known():
    named = {stack: constant_names("A100", Software(stack=stack)) for stack in (UNKNOWN, DEEPSPEED, None)}
    for what in OF_STACKS:
        found = [names[what] for names in named.values()]
        assert found == [f"{what}.{UNKNOWN}", f"{what}.{DEEPSPEED}", f"{what}.nemo"]
    values = load_constants().values
    assert all(name in values for names in named.values() for name in names.values())
    assert values["dp_exposed.nemo"] < values[f"dp_exposed.{UNKNOWN}"] < values[f"dp_exposed.{DEEPSPEED}"]
    assert values["tp_exposed.nemo"] < values[f"tp_exposed.{UNKNOWN}"]  # only it hides some of them


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
        ("NeMo", "selective (core_attn)", "attention"),
        ("NeMo", "selective (layernorm, moe)", "half"),
        ("NeMo", "selective (moe_act, layernorm)", "none"),
        ("NeMo", "not stated", None),
        ("NeMo", None, None),
    ],
)
def test_recompute_means_what_its_stack_means_by_it(title, recompute, found):
    assert words_of(row(title, recompute=recompute), generation="H100", tp=1).recompute == found
    assert found is None or found in RECOMPUTE


def pipeline(notes="", **measured):
    """A run of 32 layers in four stages, two replicas."""
    found = read_run(
        row("Megatron Core", notes=notes)
        | {
            "model": {"hidden": 4096, "layers": 32, "heads": 32, "vocab": 32000, "ffn": 16384},
            "hardware": {"gpu": "H100-80GB", "gpus": 16, "gpus_per_node": 8, "interconnect": "8x400 Gb/s"},
            "parallel": {"tp": 2, "pp": 4, "sharding": "distributed optimizer", "sp": True},
            "batch": {"micro": 1, "global": 32, "seq": 4096},
            "measured": measured,
            "flops_convention": "model FLOPs",
        }
    )
    assert isinstance(found, Run)
    return found


def test_a_pipeline_without_stages_on_a_rank_is_said_to_be_plain():
    assert set(pipeline().assumed) == {"1F1B with one stage on each rank", "dp 2 from the GPUs", "no recompute"}


def test_an_interleaved_schedule_without_a_number_has_a_layer_in_each_stage():
    found = pipeline("interleaved schedule, as the paper says")
    assert (SCHEDULES[found.policy["schedule"]], found.policy["stages_per_rank"]) == ("interleaved", 8)
    assert "interleaved stages of one layer" in found.assumed


def test_a_step_is_read_from_whatever_rate_was_printed():
    tokens, gpus = 32 * 4096, 16
    by_tokens = pipeline(tokens_per_s_per_gpu=tokens / gpus / 4).step_s
    assert by_tokens == pipeline(samples_per_s=32 / 4).step_s == pipeline(samples_per_s_per_gpu=32 / gpus / 4).step_s
    assert by_tokens == pipeline(step_time_s=4).step_s == 4
    assert pipeline(mfu=40).step_s == pytest.approx(pipeline(tflops_per_gpu=0.4 * 989.4).step_s, rel=1e-3)


def test_norms_in_python_move_more_and_keep_more():
    """Only where a stack is known to have them so, and a run does not say otherwise."""
    rows = [
        row("Aleph-Alpha's layouts", sharding="ZeRO-1", recompute="none", notes=f"kernel: flash_attention2{more}")
        | {
            "model": {"hidden": 6656, "layers": 60, "heads": 52, "vocab": 128000, "ffn": 17920, "gated_mlp": True},
            "hardware": {"gpu": "A100-80GB", "gpus": 64, "gpus_per_node": 8, "interconnect": "8x200 Gb/s"},
            "parallel": {"tp": 4, "pp": 4, "sharding": "ZeRO-1", "sp": False},
            "batch": {"micro": 1, "global": 512, "seq": 2048},
        }
        for more in ("", " + RMS kernel")
    ]
    plain, fused = map(read_run, rows)
    assert (plain.job.fused_norms, fused.job.fused_norms) == (False, True)
    assert plain.memory().total[0] > fused.memory().total[0]
    (slow, fast) = predict_rows(rows)
    assert slow["step_s"] > 1.05 * fast["step_s"] and slow["pointwise_s"] > fast["pointwise_s"]


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
