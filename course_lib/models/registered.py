"""Attention and experts of a model of `transformers`, replaced from outside without a change in its code.

It looks up both by name, in two registries, each time that it needs them. Under a name of ours stands a function that
leaves the work to the module it was called for, which whoever shares sequences or experts has given a `mix` or a
`dispatch`: those that our own decoder has. `transformers` is imported where it is used, since that takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.errors import four_parts
from course_lib.models.decoder import Mix
from course_lib.models.families import window_of
from course_lib.models.moe import Dispatch

_NAME = "course_lib"  # in both registries
# Families in which positions meet in attention alone: what else looks along a sequence would see one part of it.
ATTENTIVE = ("llama", "mistral", "mixtral", "olmo", "olmo2", "olmoe", "qwen2", "qwen3", "qwen3_moe")
_LENGTH_DEPENDENT = ("dynamic", "longrope")  # angles that depend on the longest position at hand


def mix_by(theirs: nn.Module, mix: Mix) -> None:
    """Let positions meet by `mix` in every layer.

    Shapes: `mix` takes q (B, A, S, D), k and v (B, K, S, D).
    """
    from transformers import AttentionInterface

    model: Any = theirs
    AttentionInterface.register(_NAME, _attended)
    # Of a name that has no mask of its own, their model makes none: which keys a query sees is up to `mix`.
    model.set_attn_implementation(_NAME)
    for attention in attentions_of(theirs):
        attention.mix = mix  # type: ignore[assignment]


def replace_attention(theirs: nn.Module, mix: Mix, positions: Callable[[torch.device], Tensor]) -> None:
    """The same, with the rotary angles of `positions` (S,), not of 0, 1, 2, …"""
    mix_by(theirs, mix)
    model: Any = theirs

    def with_positions(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"position_ids": positions(model.device)[None]}

    theirs.register_forward_pre_hook(with_positions, with_kwargs=True)


def _attended(attention: Any, q: Tensor, k: Tensor, v: Tensor, mask: None, **settings: Any) -> tuple[Tensor, None]:
    """What their layer calls; it wants (B, S, A, D) back. `check_attention` has seen that no setting says more."""
    return attention.mix(q, k, v).transpose(1, 2).contiguous(), None


def attentions_of(theirs: nn.Module) -> list[nn.Module]:
    """The attention of every layer, in its order."""
    return [module for module in theirs.modules() if hasattr(module, "is_causal")]


def check_attention(theirs: nn.Module, operation: str = "context") -> None:
    """Refuse a model that would compute something else if its attention were replaced.

    Raises: ValueError for settings of attention that `mix` has not, and for a family that is not known here.
    """
    config: Any = theirs.config
    settings = ", ".join(_beyond_mix(theirs, config))
    if settings:
        values, rule = f"{config.model_type} with {settings}", "a query meets all keys up to its own, by the softmax"
        raise ValueError(four_parts(operation, values, rule, "switch that off in its configuration"))
    if config.model_type not in ATTENTIVE:
        rule = "whether positions meet in its attention alone is not known here"
        way_out = f"choose from {', '.join(ATTENTIVE)}"
        raise ValueError(four_parts(operation, f"model_type={config.model_type!r}", rule, way_out))


def _beyond_mix(theirs: nn.Module, config: Any) -> Iterator[str]:
    """What changes what attention computes."""
    if window_of(config):
        yield f"sliding_window={config.sliding_window}"
    for name in ("attention_dropout", "attn_pdrop", "attn_logit_softcapping"):
        if value := getattr(config, name, None):
            yield f"{name}={value}"
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    yield from sorted(f"layers of {kind}" for kind in kinds)
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope_type in _LENGTH_DEPENDENT:
        yield f"rope_type={rope_type!r}"
    if any(name.endswith("sinks") for name, _ in theirs.named_parameters()):
        yield "sinks"


def experts_of(theirs: nn.Module) -> dict[str, nn.Module]:
    """The modules that hold a layer's experts, by name."""
    return {name: module for name, module in theirs.named_modules() if hasattr(module, "_is_expert_parallel")}


def replace_experts(theirs: nn.Module, dispatch_of: Callable[[int], Dispatch]) -> None:
    """Let rows be computed where `dispatch_of` a layer's number of experts sends them."""
    from transformers.integrations.moe import ExpertsInterface

    model: Any = theirs
    ExpertsInterface.register(_NAME, _spread)
    model.set_experts_implementation(_NAME)
    for experts in experts_of(theirs).values():
        experts.dispatch = dispatch_of(count_of(experts))  # type: ignore[assignment]


def _spread(experts: Any, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """What their layer calls.

    Shapes: rows (T, H), chosen and weights (T, k) -> (T, H).
    """
    choices = chosen.flatten()
    order = choices.argsort(stable=True)
    tokens, counts = order // chosen.shape[1], torch.bincount(choices, minlength=experts.num_experts)
    made = experts.dispatch(rows[tokens], counts, partial(_computed, experts))
    weighed = made * weights.flatten()[order, None]
    return torch.zeros_like(rows).index_add(0, tokens, weighed.to(rows.dtype))


def _computed(experts: Any, rows: Tensor, counts: Tensor) -> Tensor:
    """By the experts that are here, one after the other; a gate and what it lets through lie in one matrix."""
    found = []
    for x, gate_up, down in zip(rows.split(counts.tolist()), experts.gate_up_proj, experts.down_proj, strict=True):
        found.append(experts._apply_gate(x @ gate_up.T) @ down.T)
    return torch.cat(found)


def count_of(experts: nn.Module) -> int:
    """How many experts a layer has."""
    found: Any = experts
    return int(found.num_experts)


def check_experts(theirs: nn.Module) -> None:
    """Refuse experts that have more than a gate and two matrices, and a balance loss that nobody would train.

    Raises: ValueError naming what is too much.
    """
    config: Any = theirs.config
    if getattr(config, "output_router_logits", False):
        rule = "their balance loss is a product of means over a whole batch, and the trainer reads logits alone"
        values, way_out = f"{config.model_type} with output_router_logits=True", "choose output_router_logits=False"
        raise ValueError(four_parts("experts", values, rule, way_out))
    for name, module in experts_of(theirs).items():
        one: Any = module
        plain = {"has_gate": True, "has_bias": False, "is_transposed": False, "has_post_expert_norm": False}
        other = [f"{flag}={getattr(one, flag)}" for flag, usual in plain.items() if getattr(one, flag) != usual]
        if other:
            values, rule = f"{name} with {', '.join(other)}", "an expert is a gate and two matrices, (out, in)"
            raise ValueError(four_parts("experts", values, rule, "choose another family"))
