"""What one GPU holds: the parts, against traces of real FSDP2 and tensor parallelism."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import LLAMA_3_1_8B, ParallelConfig, load_model
from course_lib.costs import (
    CONVENTIONS,
    Work,
    explorer_block_bytes,
    find_convention,
    korthikanti_layer_bytes,
    layer_bytes,
    pipeline_in_flight,
    tensor_memory,
)
from course_lib.units import GiB

FP32 = find_convention("fp32")
SHARDED = ParallelConfig(dp=8, zero_stage=3)
AS_TRACED = {"fused_norms": False, "keep_gathered": True}  # the traces ran a CPU's norms and DTensor


def in_gib(memory):
    return {name: getattr(memory, name) / GiB for name in ("weights", "gathered", "optimizer", "activations", "head")}


@pytest.mark.parametrize(
    ("model", "parallel", "traced"),
    [  # GiB with sequence 4096, microbatch 1: fp32 shards with the unit gathered last, Adam, activations
        ("llama3_1_8b", SHARDED, {"weights": 5.70, "optimizer": 7.48, "activations": 28.63}),
        (
            "llama3_1_8b",
            replace(SHARDED, tp=8, sequence_parallel=True),
            {"weights": 0.71, "optimizer": 0.93, "activations": 5.36},
        ),
        (
            "llama3_1_70b",
            replace(SHARDED, tp=8, sequence_parallel=True),
            {"weights": 4.60, "optimizer": 8.22, "activations": 25.51},
        ),
    ],
)
def test_traces_of_fsdp2_and_tensor_parallelism(model, parallel, traced):
    found = in_gib(tensor_memory(load_model(model), parallel, Work(sequence=4096, microbatch=1, **AS_TRACED), FP32))
    assert found["weights"] + found["gathered"] == pytest.approx(traced["weights"], rel=0.01)
    assert found["optimizer"] == pytest.approx(traced["optimizer"], rel=0.01)
    # Without tensor parallelism the trace holds one more tensor as large as the logits, 0.98 GiB.
    assert found["activations"] + found["head"] == pytest.approx(traced["activations"], rel=0.035)


def test_parts_add_up():
    memory = tensor_memory(LLAMA_3_1_8B, SHARDED, Work(sequence=4096, microbatch=1), FP32)
    parts = memory.weights + memory.gradients + memory.optimizer + memory.gathered + memory.activations + memory.head
    assert memory.total == parts


def test_70b_does_not_fit_one_gpu_and_does_fit_64():
    model, work = load_model("llama3_1_70b"), Work(sequence=4096, microbatch=1)
    assert tensor_memory(model, ParallelConfig(), work, FP32).total > 1.1e12
    split = ParallelConfig(dp=8, tp=8, zero_stage=3, sequence_parallel=True)
    assert tensor_memory(model, split, work, FP32).total < 40e9


def test_only_zero_3_gathers():
    for stage in range(4):
        parallel = replace(SHARDED, zero_stage=stage)
        memory = tensor_memory(LLAMA_3_1_8B, parallel, Work(sequence=512, microbatch=1), FP32)
        assert (memory.gathered > 0) == (stage == 3)


def test_stages_hold_what_is_in_flight():
    assert [pipeline_in_flight("1f1b", n_ranks=4, rank=stage, n_microbatches=8) for stage in range(4)] == [4, 3, 2, 1]
    assert pipeline_in_flight("1f1b", n_ranks=4, rank=0, n_microbatches=2) == 2
    work = Work(sequence=512, microbatch=2, n_microbatches=8)
    staged = ParallelConfig(pp=4)
    stages = [tensor_memory(LLAMA_3_1_8B, staged, work, FP32, stage=stage) for stage in range(4)]
    one = layer_bytes(LLAMA_3_1_8B, staged, work)
    assert [stage.activations for stage in stages] == [8 * one * count for count in (4, 3, 2, 1)]
    assert [stage.head > 0 for stage in stages] == [False, False, False, True]


def test_recompute_keeps_the_inputs_and_one_layer():
    kept, again = (Work(sequence=512, microbatch=2, recompute=way) for way in ("none", "layers"))
    memory = tensor_memory(LLAMA_3_1_8B, ParallelConfig(), again, FP32)
    inputs = 31 * 2 * 512 * 4096 * 2  # that of the layer which is redone is its first norm's
    assert memory.activations == inputs + layer_bytes(LLAMA_3_1_8B, ParallelConfig(), kept)


def test_context_parallel_ranks_share_the_sequence():
    work = Work(sequence=4096, microbatch=1)
    whole, part = (tensor_memory(LLAMA_3_1_8B, ParallelConfig(cp=cp), work, FP32) for cp in (1, 4))
    assert (whole.activations, whole.head) == (4 * part.activations, 4 * part.head)


def test_a_gpt_keeps_what_the_paper_says_without_masks_and_with_what_norms_and_attention_note():
    work, parallel = Work(sequence=2048, microbatch=1), ParallelConfig(tp=8, sequence_parallel=True)
    gpt = load_model("gpt3_175b")
    paper = korthikanti_layer_bytes(gpt, batch=1, sequence=2048, tp=8, sequence_parallel=True, recompute="selective")
    masks, noted = 2 * gpt.hidden_size, 4 * gpt.n_heads + 2 * 2 * 4  # bytes of a token
    assert layer_bytes(gpt, parallel, work) == paper + 2048 * (noted - masks) // 8


def test_experts_keep_what_the_explorer_says_and_what_is_fused_there():
    """And a router's choices, of which that says nothing."""
    work, parallel = Work(sequence=2048, microbatch=1), ParallelConfig(tp=8, sequence_parallel=True)
    mixtral, dense = load_model("mixtral_8x7b"), load_model("llama3_1_8b")
    experts = layer_bytes(mixtral, parallel, work) - explorer_block_bytes(
        mixtral, parallel, sequence=2048, microbatch=1
    )
    block = 2 * 2048 * (4096 + 4 * 14336) // 8  # Mixtral's attention is that of Llama 3.1 8B
    fused = 2 * 2 * 2048 * (4096 + 14336) // 8  # of two experts a token
    router = 2048 * (2 * (8 + 3 + 2) + 8 * (2 + 4)) + 4 * 8
    assert experts == layer_bytes(dense, parallel, work) - block + fused + router // 8


@pytest.mark.parametrize("name", ["sequence", "microbatch", "n_microbatches"])
def test_work_is_positive(name):
    with pytest.raises(ValueError, match=rf"^Work: {name}=0; {name} is positive; give {name} >= 1$"):
        Work(**{"sequence": 1, "microbatch": 1, name: 0})


def test_an_unknown_way_to_recompute_is_refused():
    with pytest.raises(ValueError, match=r"^Work: recompute='some'; not a known way; choose from none, layers$"):
        Work(sequence=1, microbatch=1, recompute="some")


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"^ParallelConfig: cp=3; cp divides sequence=4096"):
        tensor_memory(LLAMA_3_1_8B, ParallelConfig(cp=3), Work(sequence=4096, microbatch=1), CONVENTIONS["zero"])
