"""What fine-tuning with a frozen model keeps: bytes of weights, of what is trained, and of activations, exactly.

A frozen matrix needs no input for its gradient, so that its input is let go of, unless something that is trained reads
it as well. Everything else stays: gates, queries and keys are kept for the gradient on its way to the layers below. So
adapters save nearly all bytes of gradients and optimizer, and few of activations. LoRA beside every matrix reads all
their inputs, and keeps r numbers more a token for each.
Source: Hu et al. 2021, LoRA, section 4.2; Dettmers et al. 2023, QLoRA, section 3; what is kept is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from course_lib.config import ModelConfig
from course_lib.costs.model.activations import (
    HALF,
    Recompute,
    Saved,
    Sharing,
    checkpointed_activations,
    head_activations,
    is_llama,
    layer_activations,
)
from course_lib.costs.model.autocast import shortened
from course_lib.costs.model.conventions import Convention
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.states import StateBytes, state_bytes
from course_lib.errors import four_parts

MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # of a layer
FACTORS = ("k_proj", "v_proj", "down_proj")  # of (IA)^3: after the first two, before the third
_NF4_BLOCK, _SCALES_BLOCK, _FP32 = 64, 256, 4


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What is trained: `rank` numbers between A and B beside each of `maps`; or rank None, (IA)^3's factors."""

    rank: int | None = 8
    maps: tuple[str, ...] = MAPS

    def __post_init__(self) -> None:
        known = FACTORS if self.rank is None else MAPS
        if not self.maps or not {*self.maps} <= {*known}:
            values, rule = f"rank={self.rank}, maps={self.maps}", "a layer has these maps, and something is trained"
            raise ValueError(four_parts("Adapters", values, rule, f"choose from {', '.join(known)}"))
        if self.rank is not None and self.rank < 1:
            raise ValueError(four_parts("Adapters", f"rank={self.rank}", "B A has a rank", "give rank >= 1, or None"))

    def parameters(self, config: ModelConfig) -> int:
        """Numbers that are trained in all layers."""
        sizes = map_sizes(config)
        if self.rank is None:
            each = [sizes[name][name == "down_proj"] for name in self.maps]
        else:
            each = [self.rank * sum(sizes[name]) for name in self.maps]
        return config.n_layers * sum(each)


IA3 = Adapters(rank=None, maps=FACTORS)


def map_sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each linear map of a layer.

    Raises: ValueError for layers that are not a Llama's.
    """
    if not is_llama(config):
        rule = "the maps are those of a Llama: four of attention, three of a gated block"
        raise ValueError(four_parts("Adapters", config.name, rule, "count the maps of another shape by hand"))
    H, inner = config.hidden_size, config.ffn_size
    return {
        "q_proj": (config.query_size, H),
        "k_proj": (config.kv_size, H),
        "v_proj": (config.kv_size, H),
        "o_proj": (H, config.mixed_size),
        "gate_proj": (inner, H),
        "up_proj": (inner, H),
        "down_proj": (H, inner),
    }


def nf4_bytes(numbers: int, *, double: bool = True) -> int:
    """A matrix in NF4: half a byte a number, and for each 64 a scale; with `double` of a byte, in blocks of 256.

    >>> nf4_bytes(2**20), nf4_bytes(2**20, double=False)
    (540932, 589824)
    """
    scales = ceil(numbers / _NF4_BLOCK)
    if not double:
        return ceil(numbers / 2) + _FP32 * scales
    return ceil(numbers / 2) + scales + _FP32 * ceil(scales / _SCALES_BLOCK) + _FP32  # the last is the scales' mean


def adapter_state_bytes(
    config: ModelConfig, adapters: Adapters, convention: Convention, *, itemsize: int = 2, nf4: bool = False
) -> StateBytes:
    """Weights, gradients and optimizer states; `convention` counts what is trained, `itemsize` what is frozen.

    With `nf4` the layers' maps lie in codes; embedding, head and norms stay as they are.
    """
    frozen = model_parameters(config) * itemsize
    if nf4:
        frozen -= config.n_layers * nf4_saving(config, itemsize)
    trained = state_bytes(adapters.parameters(config), convention)
    return replace(trained, weights=trained.weights + frozen)


def adapter_activations(
    config: ModelConfig,
    adapters: Adapters,
    *,
    batch: int,
    sequence: int,
    itemsize: int,
    recompute: Recompute = "none",
    fused_norms: bool = False,
) -> tuple[Saved, ...]:
    """The tensors that a decoder with adapters keeps, from its first layer to the loss, where all else is frozen.

    Maps in codes keep the same: their weights come back from the codes. Adapters have the model's dtype here. Layers
    that are recomputed keep their input, as without adapters, and share one tensor of rotary angles in fp32.
    Raises: ValueError for layers that are not a Llama's.
    """
    sizes: dict[str, Any] = {"batch": batch, "sequence": sequence, "itemsize": itemsize}
    ends = frozen_ends(head_activations(config, **sizes, fused_norms=fused_norms))
    if recompute == "full":
        angles = Saved(name="angles", elements=sequence * config.head_size // 2, itemsize=_FP32, shared_by="nothing")
        layer = checkpointed_activations(config, batch=batch, sequence=sequence, itemsize=itemsize)
        return (*layer * config.n_layers, angles, *ends)
    first, others = (
        adapted_layer(config, adapters, **sizes, fused_norms=fused_norms, stream=stream) for stream in (False, True)
    )
    return (*first, *others * (config.n_layers - 1), *ends)


def frozen_ends(kept: Iterable[Saved]) -> tuple[Saved, ...]:
    """Of what a model keeps at its ends: embedding and head are frozen, so that nobody reads again what they read."""
    return tuple(_without_weights(saved for saved in kept if saved.name not in ("tokens", "head input")))


def adapted_layer(
    config: ModelConfig,
    adapters: Adapters,
    *,
    batch: int,
    sequence: int,
    itemsize: int,
    fused_norms: bool,
    stream: bool,
    autocast: bool = False,
    nf4: bool = False,
) -> tuple[Saved, ...]:
    """What one layer with adapters keeps; `stream` says whether its input has a gradient, as in all but the first.

    With `autocast` products are in 16 bits, and matrices that do not lie in codes are copied.
    Raises: ValueError for layers that are not a Llama's.
    """
    map_sizes(config)  # refuses others
    layer = layer_activations(config, batch=batch, sequence=sequence, itemsize=itemsize, fused_norms=fused_norms)
    kept = _of_layer(layer, config, adapters, stream=stream, tokens=batch * sequence, itemsize=itemsize)
    if not autocast:
        return tuple(kept)
    of = {*adapters.maps}
    read_by = {"attention input": len(of & {*MAPS[:3]}), "ffn input": len(of & {*MAPS[4:6]})}
    return (*shortened(kept, read_by), *_matrices(config, adapters, stream=stream, nf4=nf4))


def parameters_on_rank(config: ModelConfig, adapters: Adapters, *, tp: int, kv_heads: int) -> int:
    """Numbers that are trained in one layer, on one of tp ranks, which has so many heads of keys and values.

    A column cuts B and a row cuts A; the other matrix is whole on every rank. Factors are cut as what they multiply.
    """
    kv = kv_heads * config.head_size
    outputs = {"q_proj": config.query_size // tp, "k_proj": kv, "v_proj": kv}
    outputs |= dict.fromkeys(("gate_proj", "up_proj"), config.ffn_size // tp)
    inputs = {"o_proj": config.mixed_size // tp, "down_proj": config.ffn_size // tp}
    cut = outputs | inputs
    if adapters.rank is None:
        return sum(cut[name] for name in adapters.maps)
    return sum(adapters.rank * (cut[name] + config.hidden_size) for name in adapters.maps)


def nf4_saving(config: ModelConfig, itemsize: int) -> int:
    """Bytes that one layer does not keep because its maps lie in codes."""
    numbers = [outputs * inputs for outputs, inputs in map_sizes(config).values()]
    return sum(count * itemsize - nf4_bytes(count) for count in numbers)


def _reached(adapters: Adapters, stream: bool) -> dict[str, bool]:
    """Of each map whether its input has a gradient: there is something trained between it and the layer's input."""
    of = {*adapters.maps}
    attention = stream or bool(of & {*MAPS[:3]})
    after_attention = attention or "o_proj" in of
    inner = after_attention or bool(of & {*MAPS[4:6]})
    return dict(zip(MAPS, (stream, stream, stream, attention, after_attention, after_attention, inner), strict=True))


def _of_layer(
    layer: Iterable[Saved], config: ModelConfig, adapters: Adapters, *, stream: bool, tokens: int, itemsize: int
) -> Iterator[Saved]:
    """One layer's; `stream` says whether its input has a gradient, which that of the first one has not."""
    of, reached = {*adapters.maps}, _reached(adapters, stream)
    attention, after_attention = reached["o_proj"], reached["gate_proj"]
    q, k, gate, up = (reached[name] or name in of for name in ("q_proj", "k_proj", "gate_proj", "up_proj"))
    needed = {
        "attention norm": stream,
        "attention input": adapters.rank is not None and bool(of & {"q_proj", "k_proj", "v_proj"}),
        "query": attention,
        "key": attention,
        "value": attention,
        "rotations": q or k,
        "attention output": attention or "o_proj" in of,
        "log-sum-exp of scores": attention,
        "ffn norm": after_attention,
        "ffn input": bool(of & {"gate_proj", "up_proj"}),
        "gate": gate,
        "silu(gate)": up,
        "up": gate,
        "gated": "down_proj" in of,
    }
    for saved in _without_weights(layer):
        if not needed[saved.name.partition(":")[0]]:
            continue
        if saved.name == "rotations":
            saved = replace(saved, elements=saved.elements * (q + k) // 2)  # each has its own
        yield saved
    yield from _of_adapters(config, adapters, tokens, itemsize)


def _matrices(config: ModelConfig, adapters: Adapters, *, stream: bool, nf4: bool) -> Iterator[Saved]:
    """Autocast's copies. Backward reads a map's matrix, and A, for the gradient of its input; and B for that of A."""
    reached = _reached(adapters, stream)
    for name, (outputs, inputs) in map_sizes(config).items():
        rows = {"": outputs * inputs * (not nf4) * reached[name]}
        if adapters.rank is not None and name in adapters.maps:
            rows |= {" A": adapters.rank * inputs * reached[name], " B": adapters.rank * outputs}
        for kind, numbers in rows.items():
            yield Saved(name=f"{name}{kind} in 16 bits", elements=numbers, itemsize=HALF, shared_by="tp")


def _without_weights(kept: Iterable[Saved]) -> Iterator[Saved]:
    """A frozen norm does not keep what its weight was multiplied by."""
    return (saved for saved in kept if not saved.name.endswith("normalised in fp32"))


def _of_adapters(config: ModelConfig, adapters: Adapters, tokens: int, itemsize: int) -> Iterator[Saved]:
    """Beside what the model itself has: the numbers between A and B; of factors what they multiply, if it is new.

    Ranks that share a matrix by columns have all of the former, for their rows of B.
    """
    for name in adapters.maps:
        if adapters.rank is not None:
            shared: Sharing = "sequence" if name in ("o_proj", "down_proj") else "nothing"
            numbers = tokens * adapters.rank
            yield Saved(name=f"{name}: between A and B", elements=numbers, itemsize=itemsize, shared_by=shared)
        elif name != "down_proj":  # whose factors multiply what is kept already
            numbers = tokens * config.kv_size
            yield Saved(name=f"{name}: before the factors", elements=numbers, itemsize=itemsize, shared_by="tp")
