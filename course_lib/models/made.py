"""The shape of a decoder of transformers that no formula here has: read from the model itself, made on meta.

Every parameter goes into one weight, so that counts are exact by construction. What a weight is for follows from its
name and size: experts are stacked or listed, what is not as wide as the stream is cut along tp. Activations then are
those of the nearest formula: a gated block's, a GPT's, or experts'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod
from typing import Any, NoReturn

from torch import nn

from course_lib.config import ModelConfig
from course_lib.config.model import LatentAttention, Made, MadeLayers, MadeWeight
from course_lib.errors import four_parts
from course_lib.models.families import window_of
from course_lib.models.linear_maps import is_linear_map

_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "attn_config.kv_n_heads")
_LENGTH = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k", "top_k", "topk")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")
_SIZES = (
    *_HIDDEN,
    *_HEADS,
    *_KV_HEADS,
    *_PER_TOKEN,
    *_EXPERTS,
    "num_hidden_layers",
    "vocab_size",
    "intermediate_size",
    "head_dim",
)
_ROW = re.compile(r"o_proj|out_proj|c_proj|down|fc2|fc_out|4h_to_h|attention\.dense|attn\.dense|w2\b")
_SHARED_KV = re.compile(r"\b(k|v|key|value)_proj")
_DOWN_TO_LATENT = re.compile(r"_a_proj|_a_norm")


def made_config(theirs: Any, model: nn.Module) -> ModelConfig:
    """The shape of `model`, which `theirs` is the configuration of; on meta, in no memory.

    Raises: ValueError for what is no decoder with attention, or a size that its configuration does not say.
    """
    causal: Any = model
    text = theirs.get_text_config()
    hidden, heads = (_said(text, names) for names in (_HIDDEN, _HEADS))
    if not hidden or not heads or getattr(theirs, "is_encoder_decoder", False):
        _refuse(theirs, "activations are counted of decoders with heads of attention", "choose a decoder")
    kv = _kv_heads(text, heads)
    reading = _Reading(causal, hidden, kv)
    if not any(weight.part == "attention" for layer in reading.layers for weight in layer):
        _refuse(theirs, "its layers have no attention", "choose a decoder with attention")
    made = Made(layers=tuple(_runs(reading.layers, hidden)), outer=tuple(reading.outer))
    experts = max(run.n_experts for run in made.layers)
    per_token = _said(text, _PER_TOKEN) if experts > 1 else 1
    if per_token is None:
        _refuse(theirs, "a token passes some of its experts", f"give config.json {_PER_TOKEN[0]}")
    return ModelConfig(
        name=theirs.name_or_path or f"transformers {theirs.model_type}",
        hidden_size=hidden,
        n_layers=len(reading.layers),
        n_heads=heads,
        n_kv_heads=kv if heads % kv == 0 else heads,
        ffn_size=made.layers[-1].ffn_size,
        vocab_size=causal.get_input_embeddings().weight.shape[0],
        tied=reading.tied,
        max_sequence=_said(text, _LENGTH),
        positions="learned" if any(one.part == "positions" for one in made.outer) else "rotary",
        gated_ffn=_is_gated(reading.layers[-1]),
        norm="layer" if reading.has_norm_biases else "rms",
        n_experts=experts,
        experts_per_token=per_token,
        shared_ffn_size=_inner(reading.layers[-1], hidden, "shared_ffn.") if experts > 1 else 0,
        head_dim=None if getattr(text, "kv_lora_rank", None) else _head_dim(text, hidden, heads),
        latent=_latent(text),
        made=made,
        **(window_of(text) if hasattr(text, "num_hidden_layers") else {}),
        uncomputed=(f"layers of {theirs.model_type}",),
    )


def missing_sizes(theirs: Any) -> list[str]:
    """Sizes that a configuration leaves open, for whoever cannot build its model."""
    text = theirs.get_text_config()
    return [name for name in _SIZES if getattr(text, name, 0) is None]


class _Reading:
    """The weights of each layer, and those outside."""

    def __init__(self, model: Any, hidden: int, kv_heads: int) -> None:
        self.hidden, self.kv_heads, self.seen = hidden, kv_heads, set[int]()
        ends = {"embedding": model.get_input_embeddings(), "head": model.get_output_embeddings()}
        self.tied = ends["head"] is None or ends["head"].weight is ends["embedding"].weight
        self.has_norm_biases = any(
            "norm" in name.lower() and name.endswith("bias") for name, _ in model.named_parameters()
        )
        blocks = _blocks(model)
        inside = {id(p) for block in blocks for p in block.parameters()}
        named = {
            id(p): f"{end}{'.bias' * (kind == 'bias')}"
            for end, one in ends.items()
            if one is not None
            for kind, p in one.named_parameters(recurse=False)
        } | {id(ends["embedding"].weight): "embedding"}
        self.outer = [
            self._outside(named.get(id(p), name), p) for name, p in model.named_parameters() if id(p) not in inside
        ]
        self.layers = [tuple(self._layer(block)) for block in blocks]

    def _outside(self, name: str, parameter: nn.Parameter) -> MadeWeight:
        shape = tuple(parameter.shape)
        part = name.partition(".")[0]
        if part in ("embedding", "head"):
            return MadeWeight(name, part, shape, 0)
        if len(shape) == 2 and re.search(r"position|wpe", name):
            return MadeWeight("positions", "positions", shape)
        return MadeWeight(name, "norm" if len(shape) == 1 else "embedding", shape)

    def _layer(self, block: nn.Module) -> Iterator[MadeWeight]:
        """Its own parameters; experts of a list are copies of one."""
        convolutions = {id(p) for m in block.modules() if isinstance(m, nn.Conv1d) for p in m.parameters()}
        linear = {id(p) for m in block.modules() if is_linear_map(m) for p in m.parameters(recurse=False)}
        found = dict[MadeWeight, int]()
        for name, parameter in block.named_parameters():
            if id(parameter) in self.seen:
                continue
            self.seen.add(id(parameter))
            plain = re.sub(r"experts\.\d+\.", "experts.", name)
            one = self._weight(plain, tuple(parameter.shape), id(parameter) in convolutions)
            one = one._replace(is_map=id(parameter) in linear)
            found[one] = found.get(one, 0) + 1
        for one, count in found.items():
            yield one._replace(copies=one.copies * count)

    def _weight(self, name: str, shape: tuple[int, ...], is_convolution: bool) -> MadeWeight:
        piece = piece_of(name, shape)
        if piece == "norm" or is_convolution or len(shape) == 0:
            return MadeWeight(f"{piece}.{name}", "norm" if piece == "norm" else "attention", (prod(shape),))
        if piece == "router":
            return MadeWeight("router", "router", shape)
        stacked = len(shape) == 3 or (
            piece == "ffn" and "experts" in name and len(shape) == 2 and name.endswith("bias")
        )
        rest = shape[1:] if stacked else shape
        split = self._split(name, rest)
        heads = self.kv_heads if _SHARED_KV.search(name) and split == 0 else None
        part = "attention" if piece == "attention" else "ffn"
        return MadeWeight(f"{piece}.{name}", part, rest, split, heads, shape[0] if stacked else 1)

    def _split(self, name: str, shape: tuple[int, ...]) -> int | None:
        """The dim that is no wider or narrower by chance: not the stream's."""
        if _DOWN_TO_LATENT.search(name):
            return None
        if len(shape) == 1:  # a bias is cut with the outputs of its map
            return None if _ROW.search(name) else 0
        other = [dim for dim, size in enumerate(shape) if size != self.hidden]
        return other[0] if other else 1 if _ROW.search(name) else 0


def piece_of(name: str, shape: tuple[int, ...]) -> str:
    """What a layer's parameter is for, by its name in the layer."""
    low = name.lower()
    if len(shape) <= 1 and re.search(r"norm|ln_|ln\d|scale|sinks|layer_scalar", low):
        return "norm"
    if (
        re.search(r"router|\bgate\.|gate\.weight|e_score|expert_bias", low)
        and "gate_proj" not in low
        and len(shape) <= 2
    ):
        return "router"
    if "shared" in low:
        return "shared_ffn"
    if re.search(r"attn|attention|mixer|conv|temporal", low) and "experts" not in low:
        return "attention"
    return "ffn"


def _blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The decoder's layers: of all lists of modules the one with most parameters."""
    lists: list[nn.ModuleList] = [one for one in model.modules() if isinstance(one, nn.ModuleList) and len(one)]
    if not lists:
        _refuse(getattr(model, "config", model), "it has no list of layers", "choose a decoder")
    largest = max(lists, key=lambda one: sum(p.numel() for p in one.parameters()))
    return [*largest]


def _runs(layers: Sequence[tuple[MadeWeight, ...]], hidden: int) -> Iterator[MadeLayers]:
    """Layers that follow one another and are alike."""
    for weights, alike in groupby(layers):
        experts = max(
            (one.copies for one in weights if one.name.startswith("ffn.") and "experts" in one.name), default=1
        )
        stacked = max((one.copies for one in weights if one.name.startswith("ffn.")), default=1)
        yield MadeLayers(
            count=len([*alike]),
            weights=weights,
            n_experts=max(experts, stacked),
            ffn_size=max(1, _inner(weights, hidden, "ffn.")),
        )


def _inner(weights: Sequence[MadeWeight], hidden: int, piece: str) -> int:
    """The inner size of one such block."""
    matrices = [prod(one.shape) for one in weights if one.name.startswith(piece) and len(one.shape) == 2]
    return sum(matrices) // (hidden * (3 if _is_gated(weights) else 2))


def _is_gated(weights: Sequence[MadeWeight]) -> bool:
    """Whether the block has three matrices' worth of numbers, be two of them in one."""
    for piece in ("ffn.", "shared_ffn."):
        matrices = [prod(one.shape) for one in weights if one.name.startswith(piece) and len(one.shape) == 2]
        if matrices:
            return sum(matrices) > 2.5 * min(matrices)
    return False


def _kv_heads(text: Any, heads: int) -> int:
    """As many as of queries, unless something else is said."""
    if getattr(text, "kv_lora_rank", None):
        return heads
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    return _said(text, _KV_HEADS) or heads


def _latent(text: Any) -> LatentAttention | None:
    if not getattr(text, "kv_lora_rank", None):
        return None
    return LatentAttention(
        kv_rank=text.kv_lora_rank,
        query_rank=text.q_lora_rank,
        plain_size=text.qk_nope_head_dim,
        rotary_size=text.qk_rope_head_dim,
        value_size=text.v_head_dim,
    )


def _head_dim(text: Any, hidden: int, heads: int) -> int | None:
    given = getattr(text, "head_dim", None)
    if isinstance(given, int) and given * heads != hidden:
        return given
    return None if hidden % heads == 0 else max(1, hidden // heads)


def _said(text: Any, names: Sequence[str]) -> int | None:
    """The first of these fields that is a positive whole number."""
    for name in names:
        value: Any = text
        for word in name.split("."):
            value = getattr(value, word, None)
        if type(value) is int and value > 0:
            return value
    return None


def _refuse(theirs: Any, rule: str, way_out: str) -> NoReturn:
    family = getattr(theirs, "model_type", type(theirs).__name__)
    raise ValueError(four_parts("made_config", f"model_type={family!r}", rule, way_out))
