"""Which linear maps of a model are meant, by patterns of its own names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from course_lib.errors import four_parts
from course_lib.models.patterns import named_by, patterns_of

ALL = ("layers.*.attention.*_proj", "layers.*.ffn.*_proj")
QUERIES_AND_VALUES = ("layers.*.attention.q_proj", "layers.*.attention.v_proj")


def replace_linears(
    operation: str,
    model: nn.Module,
    targets: Sequence[str],
    kinds: type[Any] | tuple[type[Any], ...],
    make: Callable[[Any], nn.Module],
) -> None:
    """Put `make(map)` in the place of every map of these kinds that a pattern names.

    Raises: ValueError for a pattern that names none, since a model that nothing was done to would train or not, unseen.
    """
    maps = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    meant: dict[str, None] = {}
    for pattern in targets:
        hits = named_by(pattern, maps)
        if not hits:
            rule = "every pattern names a linear map, so that nothing stays as it was unseen"
            way_out = f"see {', '.join(patterns_of(maps)) or 'another model: there is none here'}"
            raise ValueError(four_parts(operation, f"{pattern}: no linear map is called so", rule, way_out))
        meant |= dict.fromkeys(hits)
    for name in meant:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, make(maps[name]))
