"""The few numbers of a model that its step time depends on, from its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from course_lib.config import ModelConfig
from course_lib.costs.model.adapters import Adapters
from course_lib.costs.model.parameters import Weight, layer_weights
from course_lib.sim.policies import Value


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model as the closed form sees it: widths of its mean layer; one number each, or one for each policy.

    Of models whose first layers are dense, the mean layer has a part of each kind.
    """

    hidden: Value
    layers: Value
    dense_width: Value  # columns of all matrices that tp shares, each with H rows; experts apart
    heads: Value
    head_size: Value
    query: Value  # width of all queries, and of what attention gives back
    kv: Value  # width of all keys
    pointwise_ffn: Value  # inner widths that activation functions pass, experts apart
    expert_width: Value  # columns of the matrices of one expert
    expert_inner: Value  # inner widths that activation functions pass, of one expert
    experts: Value  # in a layer that has some
    active: Value  # experts that a token passes
    sparse: Value  # share of the layers that have experts; 0 without
    vocab: Value
    window: Value  # tokens that a token sees in layers with a window; infinite without
    windowed: Value  # share of the layers that have one
    frozen: Value = 0.0  # 1 where weights have no gradients, since something is trained beside them
    beside: Value = 0.0  # columns of H rows that are trained there
    rank: Value = 0.0  # between A and B; 0 without LoRA
    adapted_inputs: Value = 0.0  # columns that all maps with A and B read, and that they make
    adapted_outputs: Value = 0.0


def shape_of(model: ModelConfig, adapters: Adapters | None = None) -> Shape:
    """The shape of a model, all of which is trained, or what is beside it."""
    dense, expert = _columns(model)
    sparse = (model.n_layers - model.dense_layers) / model.n_layers if model.n_experts > 1 else 0.0
    inner = 4 if model.gated_ffn else 2
    fixed = model.shared_ffn_size * sparse + (model.dense_ffn_size or 0) * (1 - sparse)
    return Shape(
        hidden=float(model.hidden_size),
        layers=float(model.n_layers),
        dense_width=dense,
        heads=float(model.n_heads),
        head_size=float(model.head_size),
        query=(model.query_size + model.mixed_size) / 2,
        kv=float(model.query_size if model.latent is not None else model.kv_size),
        pointwise_ffn=float(inner * (fixed if sparse else model.ffn_size)),
        expert_width=expert,
        expert_inner=float(inner * model.ffn_size if sparse else 0),
        experts=float(model.n_experts),
        active=float(model.experts_per_token),
        sparse=sparse,
        vocab=float(model.vocab_size),
        window=float(model.window or inf),
        windowed=model.windowed_layers / model.n_layers,
        **({} if adapters is None else _beside(model, adapters)),
    )


def _beside(model: ModelConfig, adapters: Adapters) -> dict[str, float]:
    """What a mean layer has beside frozen weights."""
    adapted = [
        (count / model.n_layers * weight.copies, weight.shape)
        for count, kind in model.layer_kinds
        for weight in adapters.beside(kind)
    ]
    products = adapters.rank is not None
    return {
        "frozen": 1.0,
        "beside": adapters.parameters(model) / model.n_layers / model.hidden_size,
        "rank": float(adapters.rank or 0),
        "adapted_inputs": sum(share * shape[1] for share, shape in adapted) * products,
        "adapted_outputs": sum(share * shape[0] for share, shape in adapted) * products,
    }


def _columns(model: ModelConfig) -> tuple[float, float]:
    """Columns of H rows: of the mean layer's shared matrices, and of one expert's."""
    H, dense, expert = model.hidden_size, 0.0, 0.0
    for count, kind in model.layer_kinds:
        share = count / model.n_layers
        for weight in layer_weights(kind):
            if len(weight.shape) < 2 or weight.name == "router":
                continue
            if _is_expert(weight, kind):
                expert += weight.parameters / kind.n_experts / H
            else:
                dense += share * weight.parameters / H
    return dense, expert


def _is_expert(weight: Weight, model: ModelConfig) -> bool:
    return model.n_experts > 1 and weight.name.startswith("ffn.")
