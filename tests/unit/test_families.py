"""Decoder families of transformers: every parameter of theirs is counted, and what cannot be said is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import pytest
import torch
import transformers

from course_lib import presets
from course_lib.config import ParallelConfig, load_model, parse_model
from course_lib.costs import (
    Exploration,
    Grid,
    active_parameters,
    explore,
    explorer_parameters,
    forward_flops,
    model_parameters,
    parameters_by_part,
)
from course_lib.costs.model.states import rank_parameters
from course_lib.models.decoder import Decoder
from course_lib.models.families import config_of
from tests.unit.module_01.test_presets_transformers import READ, part_of

# The numbers of each model's own config.json; those that change no count are left out. Then its size as published.
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA = {"vocab_size": 128256, "num_key_value_heads": 8}
PUBLISHED = {
    "Llama 3.1 8B": (
        "Llama",
        {**LLAMA, "intermediate_size": 14336, "rope_parameters": SCALED},
        8_030_261_248,
    ),
    "Llama 3.2 1B": (
        "Llama",
        {**LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True},
        1_235_814_400,
    ),
    "Mistral 7B": ("Mistral", {}, 7_241_732_096),
    "Mixtral 8x7B": ("Mixtral", {}, 46_702_792_704),
    "Qwen2 0.5B": (
        "Qwen2",
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        494_032_768,
    ),
    "Qwen2.5 7B": (
        "Qwen2",
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
        },
        7_615_616_512,
    ),
    "Qwen3 8B": (
        "Qwen3",
        {
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "max_position_embeddings": 40960,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        8_190_735_360,
    ),
    "Qwen3 0.6B": (
        "Qwen3",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
        596_049_920,
    ),
    "Gemma 2 9B": (
        "Gemma2",
        {
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
        },
        9_241_705_984,
    ),
    "Phi-3 mini": ("Phi3", {}, 3_821_079_552),
    "OLMo 7B": ("Olmo", {}, 6_888_095_744),
    "OLMo 2 7B": (
        "Olmo2",
        {
            "vocab_size": 100352,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        },
        7_298_617_344,
    ),
    "OLMoE 1B-7B": ("Olmoe", {"intermediate_size": 1024}, 6_919_161_856),
    "DeepSeek-V2-Lite": (
        "DeepseekV2",
        {
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 6,
        },
        15_706_484_224,
    ),
    "DeepSeek-V2": (
        "DeepseekV2",
        {
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "n_routed_experts": 160,
            "max_position_embeddings": 163840,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 6,
        },
        235_741_434_880,
    ),
}


def theirs(name):
    family, settings, _ = PUBLISHED[name]
    return getattr(transformers, f"{family}Config")(**settings)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_parameter_of_a_published_model_is_counted(name):
    family, _, published = PUBLISHED[name]
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(theirs(name))
    counts = Counter()
    for tensor, parameter in model.named_parameters():
        counts[part_of(tensor)] += prod(parameter.shape)
    shape = config_of(theirs(name))
    assert parameters_by_part(shape) == counts
    assert model_parameters(shape) == counts.total() == published


@pytest.mark.parametrize(("name", "billions", "digits"), [("Mixtral 8x7B", 12.9, 1), ("OLMoE 1B-7B", 1.3, 1)])
def test_a_token_meets_the_published_number_of_parameters(name, billions, digits):
    assert round(active_parameters(config_of(theirs(name))) / 1e9, digits) == billions


def test_deepseek_counts_what_a_token_meets_without_the_embedding():
    """Published are 21 and 2.4 thousand million; with its embedding the small one meets 2.7."""
    for name, billions in (("DeepSeek-V2", 21), ("DeepSeek-V2-Lite", 2.4)):
        shape = config_of(theirs(name))
        met = active_parameters(shape) - parameters_by_part(shape)["embedding"]
        assert met / 1e9 == pytest.approx(billions, abs=0.06 if billions < 3 else 0.5)


def test_the_stages_of_a_pipeline_hold_the_first_dense_layers_too():
    model = config_of(theirs("DeepSeek-V2"))
    stages = [rank_parameters(model, ParallelConfig(pp=4), stage=stage) for stage in range(4)]
    assert sum(stage.total for stage in stages) == model_parameters(model)
    dense, sparse = (layer for _, layer in stages[0].layers)
    assert [count for count, _ in stages[0].layers] == [1, 14] and dense.experts == 0
    assert sparse.experts == 3 * 160 * 5120 * 1536
    assert stages[0].largest_unit == sparse.total


def test_expert_parallelism_leaves_shared_blocks_and_routers_whole():
    model = config_of(theirs("DeepSeek-V2-Lite"))
    whole, part = (rank_parameters(model, ParallelConfig(dp=8, ep=ep)) for ep in (1, 8))
    assert part.shared == whole.shared and 8 * part.experts == whole.experts


@pytest.mark.parametrize("name", ["Gemma 2 9B", "Qwen3 0.6B", "OLMo 2 7B", "OLMoE 1B-7B", "DeepSeek-V2"])
def test_the_sweep_and_the_explorer_take_them(name):
    model = config_of(theirs(name))
    rows = explore(model, Exploration(global_batch=64), Grid(gpus=(64,), tp=(1, 2), pp=(1, 2), cp=(1,), ep=(1, 4)))
    assert rows and all(row.total_memory_gb > row.activations_memory_gb > 0 for row in rows)
    assert explorer_parameters(model) == pytest.approx(model_parameters(model), rel=2e-3)  # without norms, routers


def test_wide_heads_have_wide_scores():
    gemma, deepseek = (config_of(theirs(name)) for name in ("Gemma 2 9B", "DeepSeek-V2"))
    assert forward_flops(gemma, sequence=100).scores == 4 * 100 * 16 * 256 * 42
    assert forward_flops(deepseek, sequence=100).scores == 2 * 100 * 128 * (128 + 64 + 128) * 60
    assert forward_flops(deepseek, sequence=1).matrices < 2 * active_parameters(deepseek)


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (
            transformers.MambaConfig(),
            "model_type='mamba'; the shape of that family is not known here; choose from llama",
        ),
        (transformers.Qwen2MoeConfig(), "model_type='qwen2_moe'; "),
        (
            transformers.DeepseekV2Config(attention_bias=True, num_experts_per_tok=6),
            "deepseek_v2 with attention_bias=True; attention_bias=Fal",
        ),
        (
            transformers.MixtralConfig(num_local_experts=1, num_experts_per_tok=1),
            "mixtral with num_local_experts=1; a router before one expert is not in our shape; give 2 or more",
        ),
        (
            transformers.DeepseekV2Config(),
            "deepseek_v2 with num_experts_per_tok=None; num_experts_per_tok is a whole number; give config.json num",
        ),
        (transformers.LlamaConfig(hidden_act="relu"), "llama with hidden_act='relu'; hidden_act='silu' alone is known"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(theirs, message):
    with pytest.raises(ValueError, match=f"^config_of: {message}"):
        config_of(theirs)


@pytest.mark.parametrize("name", ["Gemma 2 9B", "Qwen3 0.6B", "OLMo 2 7B", "DeepSeek-V2-Lite"])
def test_our_decoder_refuses_what_it_would_compute_otherwise(name):
    with torch.device("meta"), pytest.raises(ValueError, match=r"^Decoder: (norms_per_layer|qk_norm|n_experts)="):
        Decoder(config_of(theirs(name)))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (transformers.MistralConfig(), "window=4096"),
        (transformers.LlamaConfig(**PUBLISHED["Llama 3.1 8B"][1]), "rope_type='llama3'"),
        (transformers.Phi3Config(partial_rotary_factor=0.75), "partial_rotary_factor=0.75"),
        (transformers.Qwen2Config(use_sliding_window=True, sliding_window=8, max_window_layers=30), "window=8"),
        (transformers.GPT2Config(activation_function="gelu"), "activation_function='gelu'"),
    ],
)
def test_our_decoder_refuses_settings_that_change_no_count(settings, what):
    with torch.device("meta"), pytest.raises(ValueError, match=f"^Decoder: {what}; this decoder computes without that"):
        Decoder(config_of(settings))


def test_what_is_computed_otherwise_has_a_name():
    gemma = config_of(transformers.Gemma2Config(query_pre_attn_scalar=224))
    assert gemma.uncomputed[0] == "hidden_activation='gelu_pytorch_tanh'"
    assert gemma.uncomputed[1:3] == ("attn_logit_softcapping=50.0", "final_logit_softcapping=30.0")
    assert gemma.uncomputed[3:] == ("query_pre_attn_scalar=224",)
    assert config_of(theirs("Qwen2.5 7B")).uncomputed == config_of(theirs("OLMo 7B")).uncomputed == ()


@pytest.mark.parametrize(
    ("name", "window", "layers"), [("Mistral 7B", 4096, 32), ("Gemma 2 9B", 4096, 21), ("Qwen2.5 7B", None, 0)]
)
def test_windows_are_read_with_their_layers(name, window, layers):
    shape = config_of(theirs(name))
    assert (shape.window, shape.windowed_layers) == (window, layers)


@pytest.mark.parametrize(("name", "sequence"), [("Mistral 7B", 5000), ("Gemma 2 9B", 9000), ("Gemma 2 9B", 300)])
def test_scores_behind_a_window_are_not_computed(name, sequence):
    shape = config_of(theirs(name))
    each = 2 * (shape.query_size + shape.mixed_size)
    whole = shape.n_layers - shape.windowed_layers
    seen = sum(
        whole * token + shape.windowed_layers * min(token, shape.window) for token in range(1, sequence + 1)
    )  # under the mask
    assert forward_flops(shape, sequence=sequence, causal=True).scores == pytest.approx(each * seen / sequence)
    all_of_them = whole * sequence + shape.windowed_layers * min(sequence, shape.window)
    assert forward_flops(shape, sequence=sequence).scores == each * all_of_them


@pytest.mark.parametrize("preset", READ)
def test_a_preset_is_what_their_configuration_says(preset):
    name = READ[preset]
    assert load_model(preset) == replace(config_of(theirs(name)), name=name)


def test_a_file_says_latent_attention_whole_or_not_at_all():
    values = presets.read("model", "deepseek_v2")
    for latent in ({"kv_rank": 512}, 512, {**values["latent"], "kv_rank": True}):
        with pytest.raises(
            ValueError, match=r"^model preset: latent=.*; latent has the numbers kv_rank, .*; give each"
        ):
            parse_model({**values, "latent": latent})
