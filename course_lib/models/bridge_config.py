"""Our config as one of transformers' Llama, OLMo or GPT-2, and which of theirs our decoder computes alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

from course_lib.config import ModelConfig
from course_lib.errors import four_parts
from course_lib.models.families import GPT2_BIASES, OLMO_EPS, config_of

Family = Literal["llama", "olmo", "gpt2"]

_TELLING = (
    "norm",
    "norm_eps",
    "positions",
    "gated_ffn",
    "clip_qkv",
    "biases",
    "n_kv_heads",
    "n_experts",
    "head_dim",
    "window",
    "uncomputed",
)
_NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # OLMo's pad would get no gradient


def family_of(config: ModelConfig) -> Family:
    """Which of their models has this shape.

    Raises: ValueError if none has.
    """
    shape = (config.norm, config.positions, config.gated_ffn, config.clip_qkv is None)
    attention = (config.qk_norm, config.latent, config.window, config.uncomputed)
    if config.n_experts == 1 and config.norms_per_layer == 2 and attention == ("none", None, None, ()):
        if shape == ("rms", "rotary", True, True) and not config.biases:
            return "llama"
        usual = not config.biases and config.head_dim is None
        if shape[:3] == ("layer_unweighted", "rotary", True) and usual and config.norm_eps == OLMO_EPS:
            return "olmo"
        plain = config.n_kv_heads == config.n_heads and {*config.biases} == {*GPT2_BIASES}
        if shape == ("layer", "learned", False, True) and plain and config.head_dim is None:
            return "gpt2"
    values = ", ".join(f"{field}={getattr(config, field)!r}" for field in _TELLING)
    rule = "the bridge knows the shapes of transformers' Llama, OLMo and GPT-2"
    raise ValueError(four_parts("bridge", values, rule, "change what none of the three has"))


def transformers_model(config: ModelConfig) -> Any:
    """Their model of this shape, with weights of its own; without dropout, as ours.

    Raises: ValueError for a shape that none of their three has.
    """
    import transformers

    theirs = transformers_config(config)
    return getattr(transformers, theirs.architectures[0])(theirs)


def transformers_config(config: ModelConfig) -> Any:
    """Their configuration of this shape.

    Raises: ValueError for a shape that none of their three has.
    """
    import transformers

    family = family_of(config)
    if family == "llama":
        settings = {**_llama_settings(config), "head_dim": config.head_size, "rms_norm_eps": config.norm_eps}
        return transformers.LlamaConfig(**settings, architectures=["LlamaForCausalLM"])
    if family == "olmo":
        settings = {**_llama_settings(config), "clip_qkv": config.clip_qkv}
        return transformers.OlmoConfig(**settings, architectures=["OlmoForCausalLM"])
    return transformers.GPT2Config(**_gpt2_settings(config), architectures=["GPT2LMHeadModel"])


def computed_config(theirs: Any) -> ModelConfig:
    """The shape of a model of theirs that our decoder computes alike.

    Raises: ValueError for another family, or for a setting that our decoder does not have.
    """
    if theirs.model_type not in get_args(Family):
        rule = "the bridge knows Llama, OLMo and GPT-2"
        way_out = f"give a model of type {', '.join(get_args(Family))}"
        raise ValueError(four_parts("bridge", f"model_type={theirs.model_type!r}", rule, way_out))
    config = replace(config_of(theirs), joined=())  # our decoder has them side by side
    if config.uncomputed:
        values = f"{theirs.model_type} with {', '.join(config.uncomputed)}"
        raise ValueError(four_parts("bridge", values, "our decoder computes without that", "choose another model"))
    family_of(config)
    return config


def _llama_settings(config: ModelConfig) -> dict[str, Any]:
    longest = {} if config.max_sequence is None else {"max_position_embeddings": config.max_sequence}
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        **longest,
        **_NO_TOKENS,
    }


def _gpt2_settings(config: ModelConfig) -> dict[str, Any]:
    return {
        "n_embd": config.hidden_size,
        "n_inner": config.ffn_size,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_positions": config.max_sequence,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied,
        "layer_norm_epsilon": config.norm_eps,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **_NO_TOKENS,
    }
