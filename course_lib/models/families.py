"""Which shape a configuration of transformers describes: the decoder families whose parameters ours can count.

The shape is what decides the number of parameters, and of operations: windows of attention too. What decides only
what is computed with them (caps of scores, scaled rotary angles) is named in it, and our decoder refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from course_lib.config import ModelConfig
from course_lib.config.model import Bias, LatentAttention
from course_lib.errors import four_parts
from course_lib.units import is_number

GPT2_BIASES: tuple[Bias, ...] = ("qkv", "attention_output", "ffn")
OLMO_EPS = 1e-5  # fixed in their code
_WHOLE = (  # fields of any family that are sizes or counts
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "num_experts_per_tok", "num_local_experts", "num_experts", "n_routed_experts"),
    *("moe_intermediate_size", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("first_k_dense_replace", "n_shared_experts", "n_embd", "n_layer", "n_head", "n_positions"),
)
_FLOATS = ("rms_norm_eps", "layer_norm_epsilon")
_OURS: dict[str, object] = {  # what our decoder computes, of settings that change no count
    "hidden_activation": "silu",
    "activation_function": "gelu_new",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}


def config_of(theirs: Any) -> ModelConfig:
    """The shape of one of their models, from its configuration.

    Raises: ValueError for a family that is not read here, or for a setting of one that our shape cannot say.
    """
    check_family(theirs.model_type)
    _check_numbers(theirs)
    read = _FAMILIES[theirs.model_type]
    name = theirs.name_or_path or f"transformers {theirs.model_type}"
    return ModelConfig(name=name, **read(theirs), **window_of(theirs), uncomputed=tuple(_uncomputed(theirs)))


def _check_numbers(theirs: Any) -> None:
    """Refuse a size that is null, or of another kind: it says nothing about how large the model is."""
    rope = getattr(theirs, "rope_parameters", None)
    bases = {} if theirs.model_type == "gpt2" else {"rope_theta": (rope or {}).get("rope_theta")}
    found = {name: getattr(theirs, name) for name in (*_WHOLE, *_FLOATS) if hasattr(theirs, name)} | bases
    for name, value in found.items():
        kind = "a whole number" if name in _WHOLE else "a number"
        if not is_number(value) or (name in _WHOLE and (type(value) is not int or value < 0)):
            values, way_out = f"{theirs.model_type} with {name}={value!r}", f"give config.json {name}"
            raise ValueError(four_parts("config_of", values, f"{name} is {kind}", way_out))


def is_known(model_type: str | None) -> bool:
    """Whether the shape of that family is known here, without a look at its model."""
    return model_type in _FAMILIES


def check_family(model_type: str | None) -> None:
    """Refuse a family whose shape is not known here.

    Raises: ValueError naming those that are.
    """
    if model_type not in _FAMILIES:
        rule, way_out = "the shape of that family is not known here", f"choose from {', '.join(_FAMILIES)}"
        raise ValueError(four_parts("config_of", f"model_type={model_type!r}", rule, way_out))


def _require(theirs: Any, **expected: object) -> None:
    """Refuse settings with any other value; one that is not there has none."""
    for name, value in expected.items():
        if (found := getattr(theirs, name, value)) != value:
            values, way_out = f"{theirs.model_type} with {name}={found!r}", "choose another model"
            raise ValueError(four_parts("config_of", values, f"{name}={value!r} alone is known here", way_out))


def window_of(theirs: Any) -> dict[str, Any]:
    """A sliding window, and in how many layers; `use_sliding_window` of Qwen says whether it slides at all."""
    size, kinds = getattr(theirs, "sliding_window", None), getattr(theirs, "layer_types", None)
    layers = kinds.count("sliding_attention") if kinds else theirs.num_hidden_layers
    return {} if size is None or not layers else {"window": size, "windowed_layers": layers}


def _uncomputed(theirs: Any) -> Iterator[str]:
    """Settings of theirs that our decoder has not."""
    yield from (f"{name}={value!r}" for name, ours in _OURS.items() if (value := getattr(theirs, name, ours)) != ours)
    for name, ours in {"rope_type": "default", "partial_rotary_factor": 1.0}.items():
        if (value := (getattr(theirs, "rope_parameters", None) or {}).get(name, ours)) != ours:
            yield f"{name}={value!r}"
    if theirs.model_type == "olmo2":
        yield "norms after the blocks"
    if (scalar := getattr(theirs, "query_pre_attn_scalar", None)) not in (None, getattr(theirs, "head_dim", None)):
        yield f"query_pre_attn_scalar={scalar}"


def _llama(theirs: Any) -> dict[str, Any]:
    """What nearly all families have, without a bias: of the same settings some read one, and others do not."""
    _require(theirs, hidden_act="silu")
    return _decoder(theirs)


def _with_biases(theirs: Any) -> dict[str, Any]:
    """Llama alone reads both settings."""
    ffn: tuple[Bias, ...] = ("ffn",) if theirs.mlp_bias else ()
    return {**_llama(theirs), "biases": (*_attention_biases(theirs), *ffn)}


def _decoder(theirs: Any) -> dict[str, Any]:
    head_dim = getattr(theirs, "head_dim", None)
    usual = theirs.hidden_size / max(1, theirs.num_attention_heads)
    return {
        "hidden_size": theirs.hidden_size,
        "n_layers": theirs.num_hidden_layers,
        "n_heads": theirs.num_attention_heads,
        "n_kv_heads": theirs.num_key_value_heads,
        "ffn_size": theirs.intermediate_size,
        "vocab_size": theirs.vocab_size,
        "tied": theirs.tie_word_embeddings,
        "max_sequence": theirs.max_position_embeddings,
        "norm_eps": getattr(theirs, "rms_norm_eps", OLMO_EPS),
        "rotary_base": theirs.rope_parameters["rope_theta"],
        "head_dim": None if head_dim == usual else head_dim,
    }


def _attention_biases(theirs: Any) -> tuple[Bias, ...]:
    return ("qkv", "attention_output") if theirs.attention_bias else ()


def _qwen2(theirs: Any) -> dict[str, Any]:
    """Its code has these biases, its configuration no word about them."""
    return {**_llama(theirs), "biases": ("qkv",)}


def _qwen3(theirs: Any) -> dict[str, Any]:
    return {**_llama(theirs), "biases": _attention_biases(theirs), "qk_norm": "head"}


def _mixtral(theirs: Any) -> dict[str, Any]:
    return {**_llama(theirs), **_experts(theirs, "num_local_experts")}


def _experts(theirs: Any, many: str) -> dict[str, Any]:
    """Their router stands before a single expert too; ours does not."""
    if (n_experts := getattr(theirs, many)) < 2:
        rule = "a router before one expert is not in our shape"
        raise ValueError(
            four_parts("config_of", f"{theirs.model_type} with {many}={n_experts}", rule, "give 2 or more")
        )
    return {"n_experts": n_experts, "experts_per_token": theirs.num_experts_per_tok}


def _phi3(theirs: Any) -> dict[str, Any]:
    return {**_llama(theirs), "joined": ("qkv", "gate_up")}


def _gemma2(theirs: Any) -> dict[str, Any]:
    _require(theirs, hidden_activation="gelu_pytorch_tanh")  # gated all the same
    return {**_decoder(theirs), "biases": _attention_biases(theirs), "norms_per_layer": 4}


def _olmo(theirs: Any) -> dict[str, Any]:
    plain = {"norm": "layer_unweighted", "clip_qkv": theirs.clip_qkv}
    return {**_llama(theirs), "biases": _attention_biases(theirs), **plain}


def _olmo2(theirs: Any) -> dict[str, Any]:
    """Its norms stand after the blocks; there are as many."""
    return {**_llama(theirs), "biases": _attention_biases(theirs), "qk_norm": "full"}


def _olmoe(theirs: Any) -> dict[str, Any]:
    normed = {"qk_norm": "full", "clip_qkv": theirs.clip_qkv}
    return {**_llama(theirs), "biases": _attention_biases(theirs), **_experts(theirs, "num_experts"), **normed}


def _deepseek_v2(theirs: Any) -> dict[str, Any]:
    _require(theirs, attention_bias=False, mlp_bias=False)
    latent = LatentAttention(
        kv_rank=theirs.kv_lora_rank,
        query_rank=theirs.q_lora_rank,
        plain_size=theirs.qk_nope_head_dim,
        rotary_size=theirs.qk_rope_head_dim,
        value_size=theirs.v_head_dim,
    )
    first = theirs.first_k_dense_replace
    dense = {"dense_layers": first, "dense_ffn_size": theirs.intermediate_size} if first else {}
    return {
        **_llama(theirs),
        **dense,
        "head_dim": None,
        "latent": latent,
        "n_kv_heads": theirs.num_attention_heads,
        "ffn_size": theirs.moe_intermediate_size,
        **_experts(theirs, "n_routed_experts"),
        "shared_ffn_size": theirs.n_shared_experts * theirs.moe_intermediate_size,
    }


def _gpt2(theirs: Any) -> dict[str, Any]:
    _require(theirs, add_cross_attention=False)
    return {
        "hidden_size": theirs.n_embd,
        "n_layers": theirs.n_layer,
        "n_heads": theirs.n_head,
        "n_kv_heads": theirs.n_head,
        "ffn_size": theirs.n_inner or 4 * theirs.n_embd,
        "vocab_size": theirs.vocab_size,
        "tied": theirs.tie_word_embeddings,
        "max_sequence": theirs.n_positions,
        "positions": "learned",
        "gated_ffn": False,
        "norm": "layer",
        "biases": GPT2_BIASES,
        "norm_eps": theirs.layer_norm_epsilon,
        "joined": ("qkv",),
    }


_FAMILIES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "llama": _with_biases,
    "mistral": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "phi3": _phi3,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "deepseek_v2": _deepseek_v2,
    "gpt2": _gpt2,
}
