"""Which layers of a model tensor parallelism cuts, and how: the plans of the course's own models, and of any other."""

from __future__ import annotations

import warnings

from torch import nn

from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.models.moe import MoEDecoder
from course_lib.parallel.tensors.roles import causal_model, derived
from course_lib.parallel.tensors.styles import Plan, Style

_DECODER: Plan = {
    "embedding": "vocabulary",
    "layers.*.attention.q_proj": "column",
    "layers.*.attention.k_proj": "column",
    "layers.*.attention.v_proj": "column",
    "layers.*.attention.o_proj": "row",
    "layers.*.ffn.up_proj": "column",
    "layers.*.ffn.down_proj": "row",
    "head": "logits",
}
_GATED: Plan = {**_DECODER, "layers.*.ffn.gate_proj": "column"}
_PAIR: Plan = {"layer1": "column", "layer2": "row"}


def plan_for(model: nn.Module) -> Plan:
    """The plan of a model of the course, or of a causal language model of `transformers`, by itself or inside `model`.

    Of the latter, what cannot be cut safely is left out, every rank has it whole, and a warning says so.
    Raises: ValueError for any other model.
    """
    if isinstance(model, MoEDecoder):
        return _of_experts(model)
    if isinstance(model, Decoder):
        return _GATED if model.config.gated_ffn else _DECODER
    if isinstance(model, MLP):
        return _PAIR
    if causal_model(model) is None:
        rule = "which maps follow each other is not written in a model"
        way_out = "give tensor(plan={'name.*': 'column', …})"
        raise ValueError(four_parts("plan_for", f"a {type(model).__name__}", rule, way_out))
    plan, whole = derived(model)
    if whole:
        by_reason: dict[str, list[str]] = {}
        for name, reason in whole.items():
            by_reason.setdefault(reason, []).append(name)
        said = [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
        warnings.warn(f"plan_for: every rank has these whole: {'; '.join(said)}", stacklevel=2)
    return plan


def _of_experts(model: MoEDecoder) -> Plan:
    """Around experts, which `experts` spreads: router and experts are whole on every rank."""
    config = model.config
    plan: dict[str, Style] = {}
    for name, style in _GATED.items():
        if ".ffn." not in name:
            plan[name] = style
            continue
        if config.dense_layers:
            plan[name] = style
        if config.shared_ffn_size:
            plan[name.replace(".ffn.", ".ffn.shared.")] = style
    return plan
