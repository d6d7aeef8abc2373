"""Wrapping policies as boxes over a model: which modules are gathered together, and how much is whole at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from torch import nn

from course_lib.errors import four_parts
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import draw_key
from course_lib.viz.ink.picture import Picture

Groups = Sequence[tuple[str, ...]]  # the module names of each unit
_NAMES, _ROW, _TALL, _LARGEST = 2.35, 0.5, 0.34, 1.75  # inches: names, a policy, a unit, the largest unit in numbers
_LEAST = 0.62  # inches: a part of the model
_MOST_PARTS, _MOST_ROWS = 12, 8
_UNIT, _ROOT = style.COMMUNICATION, style.tint(style.COMMUNICATION, 0.4)


@sheet.course_style()
def plot_wrapping(
    model: nn.Module, policies: Mapping[str, Groups], *, title: str = "What is gathered together"
) -> Picture:
    """The blocks of a model and what stands beside them from left to right, and a row for each policy's units.

    A box is a unit; what no unit has is the root's. `policies` are what wrapping policies gave for the model.
    Raises: ValueError for more than 12 parts or 8 policies.
    """
    parts = _parts(model)
    if len(parts) > _MOST_PARTS or not 1 <= len(policies) <= _MOST_ROWS:
        values, rule = f"{len(parts)} parts, {len(policies)} policies", f"room is for {_MOST_PARTS} and {_MOST_ROWS}"
        raise ValueError(four_parts("plot_wrapping", values, rule, "draw a smaller model, or fewer policies"))
    top, left = style.HEADER + 0.85, style.MARGIN + _NAMES
    subtitle = f"{sum(parts.values()):,} parameters; each box is a unit; a low box is only a part of a block"
    figure, page = sheet.new_page(top + len(policies) * _ROW + 0.25, title, subtitle)
    draw_key(page, [Entry("a unit", [_UNIT]), Entry("the root's unit", [_ROOT])], style.MARGIN)
    wide = (style.PAGE_WIDTH - style.MARGIN - _LARGEST - left) / len(parts)
    for place, name in enumerate(parts):
        short = name.rpartition(".")[2]
        marks.label(page, left + (place + 0.5) * wide, top - 0.24, _SHORT.get(short, short), size=style.SMALL_SIZE)
    right = style.PAGE_WIDTH - style.MARGIN
    for above, words in ((0.47, "parameters in"), (0.24, "the largest unit")):
        marks.label(page, right, top - above, words, size=style.SMALL_SIZE, colour=style.SOFT, align="right")
    lines = []
    for number, (name, groups) in enumerate(policies.items()):
        y = top + number * _ROW
        marks.label(page, style.MARGIN, y + _TALL / 2, name, align="left", size=style.SMALL_SIZE, code=True)
        _draw_units(page, left, y, wide, [*parts], groups)
        *units, root = _sizes(model, groups)
        largest = max(root, *units)
        words, whose = f"{largest:,}{' (root)' * (root == largest)}", ", the root's" * (root == largest)
        marks.label(page, right, y + _TALL / 2, words, size=style.SMALL_SIZE, align="right")
        named = "; ".join(" + ".join(group) for group in groups)
        lines.append(f"  {name}: {named or 'no units'}, and the root's; the largest has {largest:,} parameters{whose}")
    return Picture(figure, title=title, description="\n".join([subtitle, *lines]), kinds=["formula"])


_SHORT = {"embedding": "emb", "norm": "norm", "head": "head"}


def _parts(model: nn.Module) -> dict[str, int]:
    """The blocks and their neighbours by name, with their parameters; lists are opened."""
    found: dict[str, int] = {}
    for name, child in model.named_children():
        opened = child.named_children() if isinstance(child, nn.ModuleList) else [("", child)]
        for kind, module in opened:
            if size := _size(module):
                found[f"{name}.{kind}" if kind else name] = size
    return found


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _sizes(model: nn.Module, groups: Groups) -> list[int]:
    """Parameters of each unit, the root's last; a unit within another is not counted twice."""
    named = [name for group in groups for name in group]
    whole = {name: _size(model.get_submodule(name)) for name in named}
    inside = {
        name: [other for other in named if other.startswith(f"{name}.") and not _between(name, other, named)]
        for name in named
    }
    own = {name: whole[name] - sum(whole[other] for other in inside[name]) for name in named}
    units = [sum(own[name] for name in group) for group in groups]
    return [*units, _size(model) - sum(units)]


def _between(outer: str, inner: str, named: Sequence[str]) -> bool:
    """Whether a third module stands between two."""
    return any(name.startswith(f"{outer}.") and inner.startswith(f"{name}.") for name in named)


def _draw_units(page: Axes, left: float, y: float, wide: float, parts: Sequence[str], groups: Groups) -> None:
    """The root's unit behind all; each unit from its first part to its last, or within one part if it is smaller."""
    marks.box(page, left + 0.03, y, len(parts) * wide - 0.06, _TALL, fill=_ROOT, corner=0.05)
    for group in groups:
        places = [parts.index(name) for name in group if name in parts]
        if places:
            x, across = left + places[0] * wide, (places[-1] - places[0] + 1) * wide
            marks.box(page, x + 0.05, y + 0.03, across - 0.1, _TALL - 0.06, fill=_UNIT, corner=0.05, zorder=2)
    for place, part in enumerate(parts):
        within = [name for group in groups for name in group if name.startswith(f"{part}.")]
        for slot, _ in enumerate(within):
            thin = (wide - 0.1) / len(within)
            x = left + place * wide + 0.05 + slot * thin
            marks.box(page, x + 0.02, y + 0.09, thin - 0.04, _TALL - 0.18, fill=_UNIT, corner=0.03, zorder=3)
