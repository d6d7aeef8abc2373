"""Every parameter is where transformers has it: its own models, built without memory on the meta device."""

from __future__ import annotations

from math import prod

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from course_lib.config import load_model, model_names
from course_lib.costs import model_parameters, parameters_by_part

READ = {"deepseek_v2": "DeepSeek-V2", "gemma2_9b": "Gemma 2 9B", "olmo2_7b": "OLMo 2 7B", "qwen3_8b": "Qwen3 8B"}
OWN = [name for name in model_names() if not name.startswith("grok") and name not in READ]  # they have no Grok-1
PARTS = {  # a piece of transformers' name of a tensor -> the part it belongs to; the first that matches counts
    "embed_tokens": "embedding",
    ".wte.": "embedding",
    ".wpe.": "positions",
    "lm_head": "head",
    "norm": "norm",
    ".ln_": "norm",
    "attn": "attention",
    ".mlp.gate.": "router",
    ".mlp.": "ffn",
}


def llama_settings(config):
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_sequence,
        "tie_word_embeddings": config.tied,
    }


def gpt2(config):
    settings = GPT2Config(
        n_embd=config.hidden_size,
        n_inner=config.ffn_size,
        n_layer=config.n_layers,
        n_head=config.n_heads,
        n_positions=config.max_sequence,
        vocab_size=config.vocab_size,
        tie_word_embeddings=config.tied,
    )
    return GPT2LMHeadModel(settings)


def workshop(config):
    """GPT-Neo has the biases that the workshop's formula counts; the head gets its own here."""
    settings = GPTNeoConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_size,
        num_layers=config.n_layers,
        attention_types=[[["global"], config.n_layers]],
        num_heads=config.n_heads,
        max_position_embeddings=config.max_sequence,
        vocab_size=config.vocab_size,
        tie_word_embeddings=config.tied,
    )
    model = GPTNeoForCausalLM(settings)
    model.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=True)
    return model


def mixtral(config):
    experts = {"num_local_experts": config.n_experts, "num_experts_per_tok": config.experts_per_token}
    return MixtralForCausalLM(MixtralConfig(**llama_settings(config), **experts))


def qwen3_experts(config):
    settings = {
        "head_dim": config.head_dim,
        "num_experts": config.n_experts,
        "num_experts_per_tok": config.experts_per_token,
        "moe_intermediate_size": config.ffn_size,
    }
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**llama_settings(config) | settings))


def deepseek_v3(config):
    latent = config.latent
    settings = {
        "intermediate_size": config.dense_ffn_size,
        "first_k_dense_replace": config.dense_layers,
        "moe_intermediate_size": config.ffn_size,
        "n_routed_experts": config.n_experts,
        "num_experts_per_tok": config.experts_per_token,
        "n_shared_experts": config.shared_ffn_size // config.ffn_size,
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_nope_head_dim": latent.plain_size,
        "qk_rope_head_dim": latent.rotary_size,
        "v_head_dim": latent.value_size,
    }
    return DeepseekV3ForCausalLM(DeepseekV3Config(**llama_settings(config) | settings))


BUILDERS = {  # the start of a preset's name -> how transformers builds it
    "deepseek_v3": deepseek_v3,
    "gpt3": gpt2,
    "megatron": gpt2,
    "llama": lambda config: LlamaForCausalLM(LlamaConfig(**llama_settings(config))),
    "mixtral": mixtral,
    "olmo": lambda config: OlmoForCausalLM(OlmoConfig(**llama_settings(config))),
    "qwen3_30b": qwen3_experts,
}


def build(name):
    config = load_model(name)
    builder = (
        workshop if name.endswith("_workshop") else next(BUILDERS[key] for key in BUILDERS if name.startswith(key))
    )
    with torch.device("meta"):
        return config, builder(config)


def part_of(name):
    return next(part for piece, part in PARTS.items() if piece in f".{name}")


@pytest.mark.parametrize("name", OWN)
def test_each_part_has_the_parameters_of_transformers_own_model(name):
    config, model = build(name)
    counts = {}
    for tensor, parameter in model.named_parameters():
        assert parameter.is_meta
        counts[part_of(tensor)] = counts.get(part_of(tensor), 0) + prod(parameter.shape)
    assert parameters_by_part(config) == counts
    assert model_parameters(config) == sum(counts.values())
