"""Every parameter is where transformers has it: its own models, built without memory on the meta device."""

from __future__ import annotations

from math import prod

import pytest
import torch
from transformers import (
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


BUILDERS = {  # the start of a preset's name -> how transformers builds it
    "gpt3": gpt2,
    "megatron": gpt2,
    "llama": lambda config: LlamaForCausalLM(LlamaConfig(**llama_settings(config))),
    "mixtral": mixtral,
    "olmo": lambda config: OlmoForCausalLM(OlmoConfig(**llama_settings(config))),
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
