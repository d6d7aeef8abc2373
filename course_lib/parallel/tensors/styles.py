"""The words of a plan of tensor parallelism: styles, and which modules a pattern names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from torch import nn

from course_lib.models.patterns import named_by, patterns_of
from course_lib.parallel.tensors.faults import no_module, no_style

Style = Literal[
    "column",  # a linear map, by its outputs
    "column, gathered",  # the same, and the outputs put together again
    "logits",  # the same at the model's end: the loss is computed of the parts
    "row",  # a linear map, by its inputs
    "vocabulary",  # an embedding, by its rows
    "full norm",  # an RMSNorm over features that are cut
    "shared",  # parameters that every rank applies to features of its own: their gradients are added up
]
STYLES: tuple[Style, ...] = get_args(Style)
Plan = Mapping[str, Style]  # by module name; a * stands for one part of it, as in layers.*.ffn.up_proj


def styles_of(model: nn.Module, plan: Plan) -> dict[str, Style]:
    """The style of each module that the plan names, in the model's order.

    Raises: ValueError for a style that there is not, and for a pattern that names no module.
    """
    names, found = [name for name, _ in model.named_modules()], dict[str, Style]()
    for pattern, style in plan.items():
        if style not in STYLES:
            raise no_style(pattern, style, STYLES).error
        hits = named_by(pattern, names)
        if not hits:
            raise no_module(pattern, patterns_of(names)).error
        found |= dict.fromkeys(hits, style)
    return {name: found[name] for name in names if name in found}


def head_size_of(attention: nn.Module) -> int | None:
    """Features of one head, as the module itself has written them down; None for what is no attention."""
    size: int | None = getattr(attention, "head_size", getattr(attention, "head_dim", None))
    return size


def heads_beside(name: str, styles: Mapping[str, Style], widths: Mapping[str, int], head_size: int) -> dict[str, int]:
    """The heads of a map and of those that are cut beside it, by name; `widths` are their features before the cut."""
    parent = name.rpartition(".")[0]
    beside = [one for one, style in styles.items() if style == "column" and one.rpartition(".")[0] == parent]
    return {one: widths[one] // head_size for one in beside}


def fitting_ranks(heads: Mapping[str, int], tp: int) -> list[int]:
    """The numbers of ranks that can share the heads of all these maps, about as many as `tp` at most."""
    most = max(tp, *heads.values())
    return [n for n in range(1, most + 1) if all(copies_of(count, n, name) for name, count in heads.items())]


def copies_of(heads: int, tp: int, name: str) -> int | None:
    """On how many of `tp` ranks each head that the map `name` makes lies; None if they cannot share them.

    Heads of keys and values may be fewer than ranks, heads of queries may not.
    """
    if heads % tp == 0:
        return 1
    return tp // heads if tp % heads == 0 and not name.rpartition(".")[2].startswith("q") else None
