"""The shape of a model from the text of its config.json, where there is no transformers to read it.

A file names what its family's class adds to every other model's, so the sizes are always there. What the class would
fill in, because the file is older or the value is usual, stands below.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from course_lib.config import ModelConfig
from course_lib.errors import four_parts
from course_lib.models.families import check_family, config_of

_USUAL: dict[str, Any] = {
    **{"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "clip_qkv": None, "head_dim": None},
    **{"n_inner": None, "add_cross_attention": False, "first_k_dense_replace": 0, "q_lora_rank": None},
}
_OF_FAMILY: dict[str, dict[str, Any]] = {
    "gemma2": {"tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256},
    "gpt2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 128},
}
_SLIDES_IF_TOLD = ("qwen2", "qwen3")  # their files name a window that most of them do not use
_ROTARY_BASE = 10_000.0  # of the class, where a file says nothing
_OPERATION, _WAY_OUT = "config.json", "paste the whole file"


def config_from_text(text: str) -> ModelConfig:
    """The shape that the text of a config.json describes.

    Raises: ValueError for what is no such text, lacks a size, or is of a family that is not read here.
    """
    fields = _read(text)
    fields = fields.get("text_config", fields)  # of a model that sees as well
    check_family(fields.get("model_type"))
    theirs = SimpleNamespace(**_filled(fields))
    try:
        return config_of(theirs)
    except AttributeError as missing:
        values, rule = f"{fields['model_type']} without {missing.name}", "a model's sizes stand in its config.json"
        raise ValueError(four_parts(_OPERATION, values, rule, _WAY_OUT)) from None


def _read(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as wrong:
        values = f"line {wrong.lineno}, column {wrong.colno}"
        raise ValueError(four_parts(_OPERATION, values, f"this is no JSON ({wrong.msg})", _WAY_OUT)) from None
    if not isinstance(found, dict):
        values, rule = f"a {type(found).__name__}", "a configuration is an object with names"
        raise ValueError(four_parts(_OPERATION, values, rule, _WAY_OUT))
    return found


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """A file's fields, and what the family's class adds to them."""
    family = fields["model_type"]
    given = {"name_or_path": fields.get("_name_or_path") or f"your {family}", **_USUAL, **_OF_FAMILY.get(family, {})}
    given |= fields
    if family == "gpt2" and "n_layer" in given:  # its own name for them
        given["num_hidden_layers"] = given["n_layer"]
    if given.get("num_key_value_heads") is None and "num_attention_heads" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]
    if not given.get("rope_parameters"):
        scaling = fields.get("rope_scaling") or {}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        base = fields.get("rope_theta", _ROTARY_BASE)
        given["rope_parameters"] = {**scaling, "rope_theta": base, "rope_type": kind}
    if family in _SLIDES_IF_TOLD and not given.get("use_sliding_window"):
        given["sliding_window"] = None
    if family == "gemma2" and not given.get("layer_types"):  # every other layer slides, the first one does
        kinds = ("sliding_attention", "full_attention")
        given["layer_types"] = [kinds[layer % 2] for layer in range(given.get("num_hidden_layers", 0))]
    return given
