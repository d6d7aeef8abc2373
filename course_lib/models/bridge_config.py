"""Our config as one of transformers' Llama, OLMo or GPT-2, and back."""

from __future__ import annotations

from typing import Any, Literal

from course_lib.config import ModelConfig
from course_lib.config.model import Bias
from course_lib.errors import four_parts

Family = Literal["llama", "olmo", "gpt2"]

_NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # OLMo's pad would get no gradient
_GPT2_BIASES: tuple[Bias, ...] = ("qkv", "attention_output", "ffn")
_OLMO_EPS = 1e-5  # fixed in their code
_OURS_ALONE: dict[
    str, dict[str, object]
] = {  # what our decoder computes; a model of theirs with another value is refused
    "llama": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    "olmo": {"hidden_act": "silu", "attention_bias": False},
    "gpt2": {
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
}


def family_of(config: ModelConfig) -> Family:
    """Which of their models has this shape.

    Raises: ValueError if none has.
    """
    shape = (config.norm, config.positions, config.gated_ffn, config.clip_qkv is None)
    if config.n_experts == 1 and config.norms_per_layer == 2:
        if shape == ("rms", "rotary", True, True) and not config.biases:
            return "llama"
        if shape[:3] == ("layer_unweighted", "rotary", True) and not config.biases and config.norm_eps == _OLMO_EPS:
            return "olmo"
        plain = config.n_kv_heads == config.n_heads and {*config.biases} == {*_GPT2_BIASES}
        if shape == ("layer", "learned", False, True) and plain:
            return "gpt2"
    fields = ("norm", "norm_eps", "positions", "gated_ffn", "clip_qkv", "biases", "n_kv_heads", "n_experts")
    values = ", ".join(f"{field}={getattr(config, field)!r}" for field in fields)
    rule = "the bridge knows the shapes of transformers' Llama, OLMo and GPT-2"
    raise ValueError(four_parts("bridge", values, rule, "change what none of the three has"))


def transformers_model(config: ModelConfig) -> Any:
    """Their model of this shape, with weights of its own; without dropout, as ours.

    Raises: ValueError for a shape that none of their three has.
    """
    import transformers

    family = family_of(config)
    if family == "llama":
        settings = transformers.LlamaConfig(**_llama_settings(config), rms_norm_eps=config.norm_eps)
        return transformers.LlamaForCausalLM(settings)
    if family == "olmo":
        return transformers.OlmoForCausalLM(
            transformers.OlmoConfig(**_llama_settings(config), clip_qkv=config.clip_qkv)
        )
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**_gpt2_settings(config)))


def config_of(theirs: Any) -> ModelConfig:
    """Our config of a model of theirs.

    Raises: ValueError for another kind of model, or for a setting that our decoder does not have.
    """
    if theirs.model_type not in _OURS_ALONE:
        rule = "the bridge knows Llama, OLMo and GPT-2"
        way_out = f"give a model of type {', '.join(_OURS_ALONE)}"
        raise ValueError(four_parts("bridge", f"model_type={theirs.model_type!r}", rule, way_out))
    for name, value in _OURS_ALONE[theirs.model_type].items():
        _require(name, getattr(theirs, name), value)
    return _from_gpt2(theirs) if theirs.model_type == "gpt2" else _from_llama(theirs)


def _require(name: str, found: object, expected: object) -> None:
    if found != expected:
        rule, way_out = f"our decoder has {name}={expected!r} alone", "choose another model"
        raise ValueError(four_parts("bridge", f"{name}={found!r}", rule, way_out))


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


def _from_llama(theirs: Any) -> ModelConfig:
    """Of a Llama or an OLMo."""
    head_size = theirs.hidden_size // theirs.num_attention_heads
    _require("head_dim", getattr(theirs, "head_dim", None) or head_size, head_size)
    _require("rope_type", theirs.rope_parameters["rope_type"], "default")
    olmo = theirs.model_type == "olmo"
    return ModelConfig(
        name=theirs.name_or_path or f"transformers {theirs.model_type}",
        hidden_size=theirs.hidden_size,
        n_layers=theirs.num_hidden_layers,
        n_heads=theirs.num_attention_heads,
        n_kv_heads=theirs.num_key_value_heads,
        ffn_size=theirs.intermediate_size,
        vocab_size=theirs.vocab_size,
        tied=theirs.tie_word_embeddings,
        max_sequence=theirs.max_position_embeddings,
        norm="layer_unweighted" if olmo else "rms",
        norm_eps=_OLMO_EPS if olmo else theirs.rms_norm_eps,
        rotary_base=theirs.rope_parameters["rope_theta"],
        clip_qkv=theirs.clip_qkv if olmo else None,
    )


def _from_gpt2(theirs: Any) -> ModelConfig:
    return ModelConfig(
        name=theirs.name_or_path or "transformers gpt2",
        hidden_size=theirs.n_embd,
        n_layers=theirs.n_layer,
        n_heads=theirs.n_head,
        n_kv_heads=theirs.n_head,
        ffn_size=theirs.n_inner or 4 * theirs.n_embd,
        vocab_size=theirs.vocab_size,
        tied=theirs.tie_word_embeddings,
        max_sequence=theirs.n_positions,
        positions="learned",
        gated_ffn=False,
        norm="layer",
        biases=_GPT2_BIASES,
        norm_eps=theirs.layer_norm_epsilon,
    )
