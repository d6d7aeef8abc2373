"""Which layers of a model tensor parallelism cuts, and how: a plan from module names to styles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

from torch import nn

from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP

Style = Literal[
    "column",  # a linear map, by its outputs
    "column, gathered",  # the same, and the outputs put together again
    "logits",  # the same at the model's end: the loss is computed of the parts
    "row",  # a linear map, by its inputs
    "vocabulary",  # an embedding, by its rows
    "full norm",  # an RMSNorm over features that are cut
    "shared",  # parameters that every rank applies to features of its own: their gradients are added up
]
Plan = Mapping[str, Style]  # by module name; a * stands for one part of it, as in layers.*.ffn.up_proj

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
    """The plan of a model that the course knows.

    Raises: ValueError for one that it does not.
    """
    if isinstance(model, Decoder):
        return _GATED if model.config.gated_ffn else _DECODER
    if isinstance(model, MLP):
        return _PAIR
    rule, way_out = (
        "which maps follow each other is not written in a model",
        "give tensor(plan={'name.*': 'column', …})",
    )
    raise ValueError(four_parts("plan_for", f"a {type(model).__name__}", rule, way_out))


def styles_of(model: nn.Module, plan: Plan) -> dict[str, Style]:
    """The style of each module that the plan names, in the model's order.

    Raises: ValueError for a style that there is not, and for a pattern that names no module.
    """
    names, found = [name for name, _ in model.named_modules()], dict[str, Style]()
    for pattern, style in plan.items():
        if style not in get_args(Style):
            values, way_out = f"{pattern!r}: {style!r}", f"choose from {', '.join(map(repr, get_args(Style)))}"
            raise ValueError(four_parts("tensor", values, "the plan has no such style", way_out))
        hits = [name for name in names if re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]+"), name)]
        if not hits:
            rule, way_out = (
                "every pattern names a module, so that nothing stays whole unseen",
                f"see {', '.join(_near(names))}",
            )
            raise ValueError(four_parts("tensor", f"no module is called {pattern!r}", rule, way_out))
        found |= dict.fromkeys(hits, style)
    return {name: found[name] for name in names if name in found}


def _near(names: list[str]) -> list[str]:
    """A few names of a model, layers under one."""
    return list(dict.fromkeys(re.sub(r"\.\d+\b", ".*", name) for name in names if name))[:12]
