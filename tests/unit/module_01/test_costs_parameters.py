"""Parameter counts: tensor by tensor, against hand counts, and the published formulas beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import LLAMA_3_1_8B, load_model, model_names
from course_lib.costs import (
    PARAMETER_FORMULAS,
    active_parameters,
    expert_parameters,
    explorer_parameters,
    layer_parameters,
    layer_weights,
    megatron_parameters,
    model_parameters,
    outer_weights,
    parameters_by_part,
    workshop_parameters,
)

GPT = load_model("gpt3_small")
GROK = load_model("grok_1")


def test_the_tensors_of_a_llama_layer():
    assert {weight.name: (weight.shape, weight.copies) for weight in layer_weights(LLAMA_3_1_8B)} == {
        "norm": ((4096,), 2),
        "attention.query": ((4096, 4096), 1),
        "attention.key": ((1024, 4096), 1),
        "attention.value": ((1024, 4096), 1),
        "attention.output": ((4096, 4096), 1),
        "ffn.gate": ((14336, 4096), 1),
        "ffn.up": ((14336, 4096), 1),
        "ffn.down": ((4096, 14336), 1),
    }
    assert [weight.name for weight in outer_weights(LLAMA_3_1_8B)] == ["embedding", "last_norm", "head"]


def test_the_tensors_of_a_gpt_layer():
    shapes = {weight.name: weight.shape for weight in layer_weights(GPT)}
    biases = {name: shape for name, shape in shapes.items() if name.endswith(".bias")}
    assert set(biases.values()) == {(768,), (3072,)}
    assert len(biases) == 7 and "ffn.gate" not in shapes  # one norm entry stands for two
    assert [weight.name for weight in outer_weights(GPT)] == [
        "embedding",
        "positions",
        "last_norm",
        "last_norm.bias",
    ]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("olmo_70b_workshop", 65_288_471_656),
        ("olmo_7b_workshop", 6_715_153_764),
        ("olmo_1b_workshop", 941_346_148),
        ("olmo_1b", 1_176_764_416),
        ("llama3_1_8b", 8_030_261_248),
        ("llama3_1_70b", 70_553_706_496),
        ("llama3_1_405b", 405_853_388_800),
        ("mixtral_8x7b", 46_702_792_704),
        ("qwen3_30b_a3b", 30_532_122_624),
        ("deepseek_v3", 671_026_404_352),
    ],
)
def test_published_models_have_their_number_of_parameters(name, parameters):
    assert model_parameters(load_model(name)) == parameters


@pytest.mark.parametrize("name", model_names())
def test_parts_add_up(name):
    config = load_model(name)
    assert sum(parameters_by_part(config).values()) == model_parameters(config)
    assert layer_parameters(config) == sum(weight.parameters for weight in layer_weights(config))


@pytest.mark.parametrize("size", ["1b", "7b", "70b"])
def test_the_workshop_s_formula_is_exact_for_its_shape(size):
    config = load_model(f"olmo_{size}_workshop")
    assert workshop_parameters(config) == model_parameters(config)


def test_the_workshop_s_formula_is_not_olmo_s():
    gap = model_parameters(load_model("olmo_1b")) - workshop_parameters(load_model("olmo_1b_workshop"))
    assert gap == 1_176_764_416 - 941_346_148 == 235_418_268
    assert model_parameters(load_model("olmo_7b")) == 6_888_095_744


@pytest.mark.parametrize("name", [name for name in model_names() if name.startswith(("gpt3", "megatron"))])
def test_megatron_s_formula_leaves_out_the_last_norm(name):
    config = load_model(name)
    assert megatron_parameters(config) == model_parameters(config) - 2 * config.hidden_size


def test_the_explorer_leaves_out_norms_and_routers():
    llama = load_model("llama3_1_405b")
    assert explorer_parameters(llama) == 405_849_243_648
    assert model_parameters(llama) - explorer_parameters(llama) == parameters_by_part(llama)["norm"]
    left_out = parameters_by_part(GROK)["norm"] + parameters_by_part(GROK)["router"]
    assert model_parameters(GROK) - explorer_parameters(GROK) == left_out
    assert round(explorer_parameters(GROK) / 1e9, 1) == 315.7
    assert round(explorer_parameters(load_model("grok_1_explorer")) / 1e9) == 87


@pytest.mark.parametrize(
    ("name", "total", "met"),
    [
        ("mixtral_8x7b", 46_702_792_704, 12_879_925_248),  # published: 46.7 and 12.9 thousand millions
        ("qwen3_30b_a3b", 30_532_122_624, 3_353_032_704),  # 30.5 and 3.3, which is cut and not rounded
        ("deepseek_v3", 671_026_404_352, 37_552_282_624),  # 671 and 37, which is without the embedding's 0.9
    ],
)
def test_a_token_meets_few_of_the_parameters(name, total, met):
    config = load_model(name)
    assert (model_parameters(config), active_parameters(config)) == (total, met)


def test_what_a_token_meets_in_deepseek_v3_by_hand():
    """61 layers of attention, 3 dense blocks, 58 routers with 8 experts of 256 and the shared one, and two tables."""
    H, heads, latent, queries = 7168, 128, 512, 1536
    down = H * (queries + latent + 64)
    up = heads * ((128 + 64) * queries + (128 + 128) * latent)
    attention = down + up + heads * 128 * H + queries + latent  # with the norms of both latent vectors
    dense, expert = 3 * H * 18_432, 3 * H * 2048
    sparse = 256 * H + (8 + 1) * expert
    layers = 61 * (attention + 2 * H) + 3 * dense + 58 * sparse
    assert active_parameters(load_model("deepseek_v3")) == layers + 2 * 129_280 * H + H


def test_a_token_meets_two_of_eight_experts():
    assert GROK.n_layers * expert_parameters(GROK) == parameters_by_part(GROK)["ffn"]
    idle = 6 / 8 * parameters_by_part(GROK)["ffn"]
    assert active_parameters(GROK) == model_parameters(GROK) - idle
    assert active_parameters(LLAMA_3_1_8B) == model_parameters(LLAMA_3_1_8B)


def test_each_choice_of_shape_has_its_parameters():
    H, L, V, F = 4096, 32, 128_256, 14336
    base = model_parameters(LLAMA_3_1_8B)
    changes = {
        -V * H: {"tied": True},
        2048 * H: {"positions": "learned", "max_sequence": 2048},
        -L * H * F: {"gated_ffn": False},
        (2 * L + 1) * H: {"norm": "layer"},
        -(2 * L + 1) * H: {"norm": "layer_unweighted"},
        2 * L * H: {"norms_per_layer": 4},
        L * (H + 2 * 1024): {"biases": ("qkv",)},
        L * (2 * F + H): {"biases": ("ffn",)},
        L * H: {"biases": ("attention_output",)},
        V: {"biases": ("head",)},
        L * (3 * 3 * H * F + 4 * H): {"n_experts": 4},
    }
    assert {model_parameters(replace(LLAMA_3_1_8B, **change)) - base for change in changes.values()} == set(changes)
    for parameters, change in changes.items():
        assert model_parameters(replace(LLAMA_3_1_8B, **change)) - base == parameters


@pytest.mark.parametrize("formula", ["workshop", "megatron"])
def test_a_formula_with_positions_needs_them(formula):
    with pytest.raises(ValueError, match=r"^parameter formula for 'Llama 3.1 8B': max_sequence=None; .*; give max_seq"):
        PARAMETER_FORMULAS[formula](replace(LLAMA_3_1_8B, max_sequence=None))
