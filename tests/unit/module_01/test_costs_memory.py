"""Memory of weights, gradients and optimizer: the conventions, ZeRO, splits, and real tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from course_lib.config import LLAMA_3_1_8B, ModelConfig, ParallelConfig, load_model, model_names
from course_lib.costs import (
    CONVENTIONS,
    find_convention,
    gpus_needed,
    model_parameters,
    model_state_bytes,
    parameters_by_part,
    rank_parameters,
    state_bytes,
    workshop_parameters,
)
from course_lib.models.decoder import Decoder
from course_lib.split import divisors
from course_lib.units import GB, GiB

ZERO = find_convention("zero")
MIXTRAL = load_model("mixtral_8x7b")
SMALL = ModelConfig(
    name="small", hidden_size=256, n_layers=2, n_heads=8, n_kv_heads=2, ffn_size=704, vocab_size=1000, tied=False
)


def test_bytes_per_parameter_of_every_convention():
    assert {name: convention.bytes_per_parameter for name, convention in CONVENTIONS.items()} == {
        "half": 8,
        "workshop": 14,
        "zero": 16,
        "fp32": 16,
        "megatron": 18,
        "megatron-fp16": 20,
        "fp8-lm": 6,
    }
    assert all(convention.assumes and convention.source for convention in CONVENTIONS.values())


def test_the_workshop_forgets_the_gradients():
    workshop, zero, megatron = (CONVENTIONS[name] for name in ("workshop", "zero", "megatron"))
    assert workshop.gradients == 0
    assert workshop.bytes_per_parameter + zero.gradients == 16  # bf16 gradients
    assert workshop.bytes_per_parameter + megatron.gradients == 18  # fp32 gradients


def test_the_workshop_s_70b_needs_914_gb_and_so_many_gpus():
    states = state_bytes(workshop_parameters(load_model("olmo_70b_workshop")), CONVENTIONS["workshop"])
    assert round(states.total / GB, 2) == 914.04
    assert [gpus_needed(states.total, size * GB) for size in (40, 80)] == [23, 12]
    assert [gpus_needed(states.total, size * GiB) for size in (40, 80)] == [22, 11]


def test_the_workshop_s_memory_by_size():
    sizes = (300 * 10**6, 10**9, 7 * 10**9, 13 * 10**9, 70 * 10**9)
    found = [state_bytes(parameters, CONVENTIONS["workshop"]).total / GB for parameters in sizes]
    assert [round(gigabytes) for gigabytes in found] == [4, 14, 98, 182, 980]


def test_zero_on_64_ranks():
    found = [state_bytes(7_500_000_000, ZERO, zero_stage=stage, shards=64).total / GB for stage in range(4)]
    assert [round(gigabytes, 1) for gigabytes in found] == [120, 31.4, 16.6, 1.9]


def test_what_each_stage_of_zero_shards():
    alone = state_bytes(1000, ZERO)
    for stage in range(4):
        states = state_bytes(1000, ZERO, zero_stage=stage, shards=4)
        assert states.optimizer == alone.optimizer // (4 if stage >= 1 else 1)
        assert states.gradients == alone.gradients // (4 if stage >= 2 else 1)
        assert states.weights == alone.weights // (4 if stage >= 3 else 1)
    assert state_bytes(10, ZERO, zero_stage=3, shards=4).total == 3 * 16  # 3, 3, 2, 2: the fullest rank


@pytest.mark.parametrize(
    ("name", "per_rank"),
    [("megatron", lambda d: 6 + 12 / d), ("megatron-fp16", lambda d: 4 + 16 / d), ("fp32", lambda d: 8 + 8 / d)],
)
def test_megatron_s_distributed_optimizer(name, per_rank):
    for shards in (1, 2, 8):
        found = state_bytes(8_000, CONVENTIONS[name], zero_stage=1, shards=shards)
        assert found.total == 8_000 * per_rank(shards)


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("pp", [1, 2])
def test_pipeline_stages_add_up_to_the_model(name, pp):
    model = load_model(name)
    if model.n_layers % pp:
        pp = divisors(model.n_layers)[1]  # 105 layers have 3 stages, and 61, a prime number, 61
    parallel = ParallelConfig(pp=pp)
    stages = sum(rank_parameters(model, parallel, stage=stage).total for stage in range(pp))
    second_copy = model.vocab_size * model.hidden_size if model.tied and pp > 1 else 0
    assert stages == model_parameters(model) + second_copy


def test_tensor_parallel_ranks_share_matrices_and_repeat_the_rest():
    for model in (LLAMA_3_1_8B, MIXTRAL, load_model("gpt3_175b"), load_model("olmo_7b_workshop")):
        whole, part = (rank_parameters(model, ParallelConfig(tp=tp)).total for tp in (1, 4))
        parts = parameters_by_part(model)
        # What all ranks hold: norms, routers, positions, and the biases added after the reduction.
        repeated = parts.get("norm", 0) + parts.get("router", 0) + parts.get("positions", 0)
        rows = ("attention_output" in model.biases) + ("ffn" in model.biases)
        repeated += rows * model.n_layers * model.hidden_size
        padding = -model.vocab_size % 4 * model.hidden_size  # of GPT's 50,257 rows
        assert 4 * part - whole == 3 * repeated + padding


def test_expert_parallelism_splits_the_experts_alone():
    whole, part = (rank_parameters(MIXTRAL, ParallelConfig(dp=8, ep=ep)) for ep in (1, 4))
    assert whole.experts == parameters_by_part(MIXTRAL)["ffn"] == 4 * part.experts
    assert whole.shared == part.shared
    assert rank_parameters(LLAMA_3_1_8B, ParallelConfig()).experts == 0


def test_experts_are_sharded_over_fewer_ranks():
    parallel = ParallelConfig(dp=8, ep=4, zero_stage=3)
    parameters = rank_parameters(MIXTRAL, parallel)
    assert model_state_bytes(MIXTRAL, parallel, ZERO).total == 16 * (parameters.shared // 8 + parameters.experts // 2)


def test_context_parallel_ranks_share_the_states():
    split, replicated = ParallelConfig(dp=2, cp=4, zero_stage=3), ParallelConfig(dp=8, zero_stage=3)
    assert model_state_bytes(LLAMA_3_1_8B, split, ZERO) == model_state_bytes(LLAMA_3_1_8B, replicated, ZERO)


def test_fully_sharded_70b_on_64_ranks_as_traced_with_torch():
    parallel = ParallelConfig(dp=8, tp=8, zero_stage=3)
    states = model_state_bytes(load_model("llama3_1_70b"), parallel, CONVENTIONS["fp32"])
    assert states.optimizer / GiB == pytest.approx(8.22, rel=0.0015)  # FSDP2 x TP under torch's MemTracker


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_real_tensors_of_adam(tied, dtype):
    config = replace(SMALL, tied=tied)
    model = Decoder(config).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randint(1000, (1, 8))).sum().backward()
    optimizer.step()
    moments = sum(state[key].nbytes for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq"))
    found = (
        sum(parameter.nbytes for parameter in model.parameters()),
        sum(parameter.grad.nbytes for parameter in model.parameters()),
        moments,
    )
    convention = CONVENTIONS["fp32" if dtype == torch.float32 else "half"]  # Adam's moments have the weights' format
    states = model_state_bytes(config, ParallelConfig(), convention)
    assert found == (states.weights, states.gradients, states.optimizer)


def test_an_unknown_convention_is_refused():
    with pytest.raises(ValueError, match=r"^find_convention: name='mine'; nobody counts so; choose one of half, work"):
        find_convention("mine")


def test_impossible_sharding_is_refused():
    with pytest.raises(ValueError, match=r"^state_bytes: zero_stage=-1; ZeRO has the stages 1 to 3; choose 0"):
        state_bytes(1, ZERO, zero_stage=-1)
    with pytest.raises(ValueError, match=r"^state_bytes: shards=0; some rank holds the state; give shards >= 1$"):
        state_bytes(1, ZERO, shards=0)


def test_a_stage_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"^rank_parameters: stage=2, pp=2; stages count from 0; choose stage in 0..1"):
        rank_parameters(LLAMA_3_1_8B, ParallelConfig(pp=2), stage=2)


def test_a_device_has_memory():
    with pytest.raises(ValueError, match=r"^gpus_needed: memory_bytes=0; a device has memory; give the bytes"):
        gpus_needed(1, 0)
