"""The model of a published row: its shape, and what had to be assumed of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.config import ModelConfig, load_model
from course_lib.config.model import LatentAttention
from course_lib.sim.row_fields import need, part, whole
from course_lib.split import divisors

_HEAD = 128  # about the size of a head, where a row does not say how many there are


def model_of(given: Mapping[str, Any], sequence: int, assumed: list[str]) -> ModelConfig:
    """The model's shape; what is assumed is added to the list.

    Raises: ValueError for what is missing and cannot be assumed, or does not divide.
    """
    if "mamba" in str(given.get("name") or "").lower():
        raise ValueError("a hybrid with Mamba layers: there is no formula for them")
    if isinstance(shape := given.get("shape"), ModelConfig):  # whoever reads a folder puts it here
        return shape
    if name := given.get("preset"):
        return load_model(str(name))
    hidden, layers = (need(whole(given, key), f"model.{key}") for key in ("hidden", "layers"))
    heads = whole(given, "heads", optional=True)
    if heads is None and hidden is not None:
        size = min(divisors(hidden), key=lambda one: abs(one - _HEAD))
        heads = hidden // size
        assumed.append(f"{heads} heads of {size}")
    heads = need(heads, "model.heads")
    experts = part(given, "moe", optional=True)
    gated = given.get("gated_mlp")
    ffn = whole(given, "ffn", optional=True)
    if ffn is None:
        ffn = 4 * hidden if not gated else -(-8 * hidden // 3 // 128) * 128
        assumed.append(f"ffn {ffn}")
    vocab = whole(given, "vocab", optional=True)
    if vocab is None:
        vocab = 32_000
        assumed.append(f"vocabulary {vocab}")
    learned = given.get("pos") == "learned"
    return ModelConfig(
        name=str(given.get("name") or "unnamed"),
        hidden_size=hidden,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=whole(given, "kv_heads", optional=True) or heads,
        head_dim=whole(given, "head_dim", optional=True),
        vocab_size=vocab,
        tied=given.get("tied_embeddings") is True,
        gated_ffn=bool(gated),
        positions="learned" if learned else "rotary",
        max_sequence=sequence if learned else None,
        norm="rms" if gated else "layer",
        latent=_latent(given, assumed),
        **_experts(experts, layers, ffn),
    )


def _experts(given: Mapping[str, Any], layers: int, ffn: int) -> dict[str, Any]:
    """The fields of experts; of every second layer with experts, half are dense."""
    if not given:
        return {"ffn_size": ffn}
    inner = whole(given, "ffn", optional=True) or ffn
    every = whole(given, "every", optional=True) or 1
    dense = whole(given, "dense_layers", optional=True) or (layers - layers // every)
    return {
        "ffn_size": inner,
        "n_experts": need(whole(given, "experts"), "model.moe.experts"),
        "experts_per_token": need(whole(given, "top_k"), "model.moe.top_k"),
        "shared_ffn_size": inner * (whole(given, "shared", optional=True) or 0),
        "dense_layers": dense,
        "dense_ffn_size": ffn if dense else None,
    }


def _latent(given: Mapping[str, Any], assumed: list[str]) -> LatentAttention | None:
    if given.get("attention") != "MLA":
        return None
    assumed.append("latent attention with DeepSeek-V3's sizes")
    return LatentAttention(kv_rank=512, query_rank=1536, plain_size=128, rotary_size=64, value_size=128)
