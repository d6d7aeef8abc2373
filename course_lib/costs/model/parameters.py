"""Exact parameter counts, tensor by tensor, of every shape that ModelConfig describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Literal, get_args

from course_lib.config import ModelConfig
from course_lib.config.model import Bias

Part = Literal["embedding", "positions", "attention", "ffn", "router", "norm", "head"]
PARTS: tuple[Part, ...] = get_args(Part)
_COLUMN, _ROW = 0, 1  # Megatron's names for the two ways to split a linear map; torch's dims are the other way round


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One tensor of the model, or several of the same shape and role.

    Shapes: as torch stores them, a linear map from n to m is (m, n).
    """

    name: str
    part: Part
    shape: tuple[int, ...]
    split: int | None = None  # the dim that tensor parallelism shards; None: every tp rank holds all of it
    copies: int = 1  # in one layer, or outside the layers

    @property
    def parameters(self) -> int:
        """Numbers in all copies."""
        return self.copies * prod(self.shape)


@cache
def layer_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The tensors of one decoder layer."""
    H, kv, ffn = config.hidden_size, config.kv_size, config.ffn_size
    return (
        *_norm("norm", config, config.norms_per_layer),
        *_linear("attention.query", (H, H), _COLUMN, "qkv", config),
        *_linear("attention.key", (kv, H), _COLUMN, "qkv", config),
        *_linear("attention.value", (kv, H), _COLUMN, "qkv", config),
        *_linear("attention.output", (H, H), _ROW, "attention_output", config),
        *_router(config),
        *(_linear("ffn.gate", (ffn, H), _COLUMN, "ffn", config) if config.gated_ffn else ()),
        *_linear("ffn.up", (ffn, H), _COLUMN, "ffn", config),
        *_linear("ffn.down", (H, ffn), _ROW, "ffn", config),
    )


@cache
def outer_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The tensors outside the layers: embedding, learned positions, last norm, and the head unless it is tied."""
    table = (config.vocab_size, config.hidden_size)
    return (
        Weight(name="embedding", part="embedding", shape=table, split=0),
        *_positions(config),
        *_norm("last_norm", config, 1),
        *(() if config.tied else (Weight(name="head", part="head", shape=table, split=0),)),
        *(_bias("head", "head", config.vocab_size, split=0) if "head" in config.biases else ()),
    )


def layer_parameters(config: ModelConfig) -> int:
    """Parameters of one decoder layer: attention, feed-forward with all experts, norms."""
    return _sum(layer_weights(config))


def model_parameters(config: ModelConfig) -> int:
    """Parameters of the whole model; a tied head is counted once."""
    return config.n_layers * layer_parameters(config) + _sum(outer_weights(config))


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token meets: of the experts only those that it passes."""
    idle = config.n_experts - config.experts_per_token
    expert = expert_parameters(config) // config.n_experts
    return model_parameters(config) - config.n_layers * idle * expert


def expert_parameters(config: ModelConfig) -> int:
    """Parameters of all feed-forward blocks of one layer: what expert parallelism splits."""
    return _sum(weight for weight in layer_weights(config) if weight.part == "ffn")


def parameters_by_part(config: ModelConfig) -> dict[Part, int]:
    """Parameters of the whole model by what they belong to; the values add up to `model_parameters`."""
    layer, outer = layer_weights(config), outer_weights(config)
    counts = {
        part: config.n_layers * _sum(weight for weight in layer if weight.part == part)
        + _sum(weight for weight in outer if weight.part == part)
        for part in PARTS
    }
    return {part: count for part, count in counts.items() if count}


def _sum(weights: Iterable[Weight]) -> int:
    return sum(weight.parameters for weight in weights)


def _linear(name: str, shape: tuple[int, int], split: int, bias: Bias, config: ModelConfig) -> Iterator[Weight]:
    """A linear map of attention or of each feed-forward block; only a column-parallel one shards its bias."""
    part: Part = "ffn" if name.startswith("ffn") else "attention"
    copies = config.n_experts if part == "ffn" else 1
    yield Weight(name=name, part=part, shape=shape, split=split, copies=copies)
    if bias in config.biases:
        yield from _bias(name, part, shape[0], split=0 if split == _COLUMN else None, copies=copies)


def _bias(name: str, part: Part, size: int, *, split: int | None = None, copies: int = 1) -> Iterator[Weight]:
    yield Weight(name=f"{name}.bias", part=part, shape=(size,), split=split, copies=copies)


def _norm(name: str, config: ModelConfig, copies: int) -> Iterator[Weight]:
    if config.norm != "layer_unweighted":
        yield Weight(name=name, part="norm", shape=(config.hidden_size,), copies=copies)
    if config.norm == "layer":
        yield from _bias(name, "norm", config.hidden_size, copies=copies)


def _positions(config: ModelConfig) -> Iterator[Weight]:
    if config.positions == "learned" and config.max_sequence is not None:
        yield Weight(name="positions", part="positions", shape=(config.max_sequence, config.hidden_size))


def _router(config: ModelConfig) -> Iterator[Weight]:
    if config.n_experts > 1:
        yield Weight(name="router", part="router", shape=(config.n_experts, config.hidden_size))
