"""Exact parameter counts, tensor by tensor, of every shape that ModelConfig describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil, prod
from typing import Literal, get_args

from course_lib.config import ModelConfig
from course_lib.config.model import Bias, MadeWeight

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
    heads: int | None = None  # along that dim, if a head stays whole: of fewer heads than ranks several have the same
    copies: int = 1  # in one layer, or outside the layers
    is_map: bool = True  # of a matrix: whether a linear map has it; experts lie side by side in one tensor

    @property
    def parameters(self) -> int:
        """Numbers in all copies."""
        return self.copies * prod(self.shape)

    @property
    def piece(self) -> str:
        """What is cut along tp together with it, or left whole: attention, ffn, shared_ffn, embedding, head."""
        return self.name.partition(".")[0]

    def shape_at(self, tp: int) -> tuple[int, ...]:
        """On the first of tp ranks, whose part is the largest."""
        sizes = list(self.shape)
        if self.split is not None:
            sizes[self.split] = ceil(sizes[self.split] / min(tp, self.heads or tp))
        return tuple(sizes)


@cache
def layer_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The tensors of one decoder layer; of the last one, where the first layers are dense."""
    _, config = config.layer_kinds[-1]
    if config.made is not None:
        return _made(config.made.layers[-1].weights)
    H = config.hidden_size
    return (
        *_norm("norm", config, config.norms_per_layer),
        *(_latent_projections(config) if config.latent is not None else _projections(config)),
        *_linear("attention.output", (H, config.mixed_size), _ROW, "attention_output", config),
        *_router(config),
        *_block("ffn", config.ffn_size, config, copies=config.n_experts),
        *(_block("shared_ffn", config.shared_ffn_size, config) if config.shared_ffn_size else ()),
    )


@cache
def outer_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The tensors outside the layers: embedding, learned positions, last norm, and the head unless it is tied."""
    if config.made is not None:
        return _made(config.made.outer)
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
    layers = sum(count * layer_parameters(kind) for count, kind in config.layer_kinds)
    return layers + _sum(outer_weights(config))


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token meets: of the experts only those that it passes."""
    layers, _ = config.layer_kinds[-1]
    idle = config.n_experts - config.experts_per_token
    expert = expert_parameters(config) // config.n_experts
    return model_parameters(config) - layers * idle * expert


def expert_parameters(config: ModelConfig) -> int:
    """Parameters of a layer's feed-forward blocks but a shared one: what expert parallelism splits."""
    return _sum(weight for weight in layer_weights(config) if weight.name.startswith("ffn."))


def parameters_by_part(config: ModelConfig) -> dict[Part, int]:
    """Parameters of the whole model by what they belong to; the values add up to `model_parameters`."""
    counts = dict.fromkeys(PARTS, 0)
    for count, weights in [(1, outer_weights(config)), *((n, layer_weights(kind)) for n, kind in config.layer_kinds)]:
        for weight in weights:
            counts[weight.part] += count * weight.parameters
    return {part: count for part, count in counts.items() if count}


def _made(weights: Iterable[MadeWeight]) -> tuple[Weight, ...]:
    """As they were read from a model."""
    return tuple(Weight(**one._asdict()) for one in weights)


def _sum(weights: Iterable[Weight]) -> int:
    return sum(weight.parameters for weight in weights)


def _projections(config: ModelConfig) -> Iterator[Weight]:
    """Queries, keys and values, and the norms of the first two."""
    H, D = config.hidden_size, config.head_size
    widths = {"query": config.query_size, "key": config.kv_size, "value": config.kv_size}
    if "qkv" in config.joined:
        yield from _linear("attention.qkv", (sum(widths.values()), H), _COLUMN, "qkv", config)
    else:
        for name, width in widths.items():
            yield from _linear(f"attention.{name}", (width, H), _COLUMN, "qkv", config, heads=width // D)
    for name in ("query", "key"):
        if config.qk_norm != "none":
            size = D if config.qk_norm == "head" else widths[name]
            yield Weight(name=f"attention.{name}_norm", part="norm", shape=(size,))


def _latent_projections(config: ModelConfig) -> Iterator[Weight]:
    """Down to the latent vectors, which every tp rank computes, and up from them to its heads."""
    latent, H, A = config.latent, config.hidden_size, config.n_heads
    assert latent is not None
    source = "attention.query", (config.query_size, latent.query_rank or H)
    if latent.query_rank is not None:
        yield Weight(name="attention.query_down", part="attention", shape=(latent.query_rank, H))
        yield Weight(name="attention.query_norm", part="norm", shape=(latent.query_rank,))
    yield from _linear(*source, _COLUMN, "qkv", config)
    yield Weight(name="attention.latent_down", part="attention", shape=(latent.kv_rank + latent.rotary_size, H))
    yield Weight(name="attention.latent_norm", part="norm", shape=(latent.kv_rank,))
    up = A * (latent.plain_size + latent.value_size), latent.kv_rank
    yield from _linear("attention.key_value", up, _COLUMN, "qkv", config)


def _block(name: str, inner: int, config: ModelConfig, copies: int = 1) -> Iterator[Weight]:
    """A feed-forward block, or as many alike."""
    H = config.hidden_size
    if "gate_up" in config.joined:
        yield from _linear(f"{name}.gate_up", (2 * inner, H), _COLUMN, "ffn", config, copies)
    else:
        for kind in ("gate", "up") if config.gated_ffn else ("up",):
            yield from _linear(f"{name}.{kind}", (inner, H), _COLUMN, "ffn", config, copies)
    yield from _linear(f"{name}.down", (H, inner), _ROW, "ffn", config, copies)


def _linear(
    name: str,
    shape: tuple[int, int],
    split: int,
    bias: Bias,
    config: ModelConfig,
    copies: int = 1,
    heads: int | None = None,
) -> Iterator[Weight]:
    """A linear map of attention or of feed-forward blocks; only a column-parallel one shards its bias."""
    part: Part = "attention" if name.startswith("attention") else "ffn"
    yield Weight(name=name, part=part, shape=shape, split=split, copies=copies, heads=heads, is_map=copies == 1)
    if bias in config.biases:
        yield from _bias(name, part, shape[0], split=0 if split == _COLUMN else None, copies=copies, heads=heads)


def _bias(
    name: str, part: Part, size: int, *, split: int | None = None, copies: int = 1, heads: int | None = None
) -> Iterator[Weight]:
    yield Weight(name=f"{name}.bias", part=part, shape=(size,), split=split, copies=copies, heads=heads)


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
