"""Memory as a strip over one training step: what a rank has at each instant, a strip for each strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.units import format_bytes
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import draw_key
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.picture import Picture
from course_lib.viz.memory.parts import MEMORY_PARTS

_TALL, _PITCH, _LEFT, _RIGHT = 1.1, 1.36, style.MARGIN + 1.75, 1.85  # inches: a strip, to the next, names, the peak
_TICKS = 3  # at most, above the foot of a strip
_LINE = 0.27  # inches: from the line of the blocks' numbers to the line of words below it
_STALK = (-0.16, 0.16)  # inches: a thin line from a column to its word in the second line, around the first
_WORDS = {"start": 1, "loss": 1, "gradients": 1, "end": 0}  # instants beside the blocks' own: in which of these lines
_SAID = {"gradients": "update"}  # when gradients are complete, the update begins
_MOST, _MOST_INSTANTS = 5, 20
_PARTS = ("weights", "optimizer", "gathered", "gradients", "activations")  # from the foot up


class Bytes(Protocol):
    """What a rank has at an instant, as `verify.track_step` measures it and `costs.step_memory` counts it."""

    @property
    def name(self) -> str: ...
    @property
    def weights(self) -> int: ...
    @property
    def gathered(self) -> int: ...
    @property
    def gradients(self) -> int: ...
    @property
    def reducing(self) -> int: ...
    @property
    def gradient_pieces(self) -> int: ...
    @property
    def optimizer(self) -> int: ...
    @property
    def activations(self) -> int: ...


class _Column(NamedTuple):
    """One instant: its name, and bytes of each part; all that belongs to gradients is one part."""

    name: str
    weights: int
    optimizer: int
    gathered: int
    gradients: int
    activations: int

    @property
    def total(self) -> int:
        return sum(self[1:])


@sheet.course_style()
def plot_memory_strips(
    steps: Mapping[str, Sequence[Bytes]],
    *,
    kind: Kind = "measured",
    title: str = "What a rank has in memory during one step",
    subtitle: str = "",
) -> Picture:
    """For each strategy a column for every instant, all on one scale, and what the tallest one has.

    All steps have the same instants: "forward" and "backward" of blocks are named by the block's number. What follows
    a comma in a strategy's name stands below it.
    Raises: ValueError for no steps or more than 5, different instants, or more than 20.
    """
    strips = {name: [_column(instant) for instant in instants] for name, instants in steps.items()}
    instants = _instants(strips)
    top = style.HEADER + 0.5
    figure, page = sheet.new_page(top + len(strips) * _PITCH + 0.5, title, subtitle)
    draw_key(page, [Entry(MEMORY_PARTS[part][0], [MEMORY_PARTS[part][1]]) for part in _PARTS], style.MARGIN)
    wide = (style.PAGE_WIDTH - _LEFT - _RIGHT) / len(instants)
    tallest_of_all = max(column.total for columns in strips.values() for column in columns)
    step = _step(tallest_of_all)
    most = step * math.ceil(tallest_of_all / step)
    _draw_guides(page, top, top + len(strips) * _PITCH - 0.2, wide, instants)
    for number, (name, columns) in enumerate(strips.items()):
        foot = top + number * _PITCH + _TALL
        _name_strip(page, foot - _TALL / 2, name)
        _draw_heights(page, foot, most, step)
        for place, column in enumerate(columns):
            _draw_column(page, _LEFT + place * wide, foot, wide, column, _TALL / most)
        tallest = max(columns, key=lambda column: column.total)
        look: dict[str, Any] = {"align": "left", "size": style.SMALL_SIZE}
        x = style.PAGE_WIDTH - _RIGHT + 0.14
        marks.label(page, x, foot - _TALL / 2 - 0.13, f"peak {_short(tallest.total, '#.3g')}", **look)
        marks.label(page, x, foot - _TALL / 2 + 0.13, f"at {_said(tallest.name)}", colour=style.SOFT, **look)
    _name_instants(page, top + len(strips) * _PITCH - 0.08, wide, instants)
    return Picture(figure, title=title, description=_in_words(strips, subtitle), kinds=[kind])


def _column(at: Bytes) -> _Column:
    gradients = at.gradients + at.reducing + at.gradient_pieces
    return _Column(at.name, at.weights, at.optimizer, at.gathered, gradients, at.activations)


def _instants(strips: Mapping[str, Sequence[_Column]]) -> list[str]:
    """The names that all steps have."""
    names = [[column.name for column in columns] for columns in strips.values()]
    if not 1 <= len(names) <= _MOST or not 1 <= len(names[0]) <= _MOST_INSTANTS or any(n != names[0] for n in names):
        values = f"{len(names)} steps of {', '.join(str(len(n)) for n in names) or 'no'} instants"
        rule = f"this picture holds 1 to {_MOST} steps of the same instants, {_MOST_INSTANTS} at most"
        raise ValueError(four_parts("plot_memory_strips", values, rule, "track the same model, with fewer blocks"))
    return names[0]


def _name_strip(page: Axes, middle: float, name: str) -> None:
    """What follows a comma stands in a second line."""
    first, _, second = name.partition(", ")
    rise = 0.13 if second else 0.0
    marks.label(page, style.MARGIN, middle - rise, first, bold=True, align="left", size=style.SMALL_SIZE)
    if second:
        marks.label(page, style.MARGIN, middle + rise, second, colour=style.SOFT, align="left", size=style.SMALL_SIZE)


def _draw_column(page: Axes, x: float, foot: float, wide: float, column: _Column, scale: float) -> None:
    y = foot
    for part in _PARTS:
        tall = getattr(column, part) * scale
        y -= tall
        if tall > 0:
            marks.box(page, x + 0.02, y, wide - 0.04, tall, fill=MEMORY_PARTS[part][1], corner=0)


def _draw_guides(page: Axes, y: float, foot: float, wide: float, instants: Sequence[str]) -> None:
    """Thin lines through all strips, where one pass ends and another begins."""
    kinds = [name.partition(" ")[0] for name in instants]
    for place, (before, after) in enumerate(pairwise(kinds), 1):
        if before != after:
            x = _LEFT + place * wide
            page.plot([x, x], [y, foot], color=style.FAINT, linewidth=1.0, zorder=0)


def _step(most: int) -> int:
    """A round number of bytes that reaches the tallest column in a few steps."""
    unit = 1024 ** int(math.log(max(most, 1), 1024))
    rounds = (factor * 10**power for power in range(4) for factor in (1, 2, 5))
    return next(number * unit for number in rounds if number * unit * (_TICKS + 1) > most)


def _draw_heights(page: Axes, foot: float, most: int, step: int) -> None:
    """Lines at round numbers of bytes from the foot to the first that no column passes."""
    for number in range(0, most + 1, step):
        y = foot - number * _TALL / most
        page.plot([_LEFT, style.PAGE_WIDTH - _RIGHT], [y, y], color=style.FAINT, linewidth=1.0, zorder=0)
        words = _short(number) if number else "0"
        marks.label(page, _LEFT - 0.08, y, words, size=style.SMALL_SIZE, colour=style.SOFT, align="right")


def _said(instant: str) -> str:
    """An instant in words: "backward layers.3" is backward 3."""
    kind, _, block = instant.partition(" ")
    return f"{_SAID.get(kind, kind)} {block.rpartition('.')[2]}".rstrip()


def _name_instants(page: Axes, y: float, wide: float, instants: Sequence[str]) -> None:
    """Under the columns: a block's number, and below once for all of a pass its name, and the other instants'."""
    for place, name in enumerate(instants):
        words = name.rpartition(".")[2] if "." in name else ""
        marks.label(page, _LEFT + (place + 0.5) * wide, y, words, size=style.SMALL_SIZE, colour=style.SOFT)
    for kind in ("forward", "backward"):
        places = [place for place, name in enumerate(instants) if name.startswith(kind)]
        if places:
            middle = _LEFT + (sum(places) / len(places) + 0.5) * wide
            marks.label(page, middle, y + _LINE, f"{kind} of block", size=style.SMALL_SIZE, colour=style.SOFT)
    for place, name in enumerate(instants):
        if name in _WORDS:
            middle = _LEFT + (place + 0.5) * wide
            marks.label(page, middle, y + _WORDS[name] * _LINE, _said(name), size=style.SMALL_SIZE, colour=style.SOFT)
            if _WORDS[name]:
                page.plot([middle, middle], [y + end for end in _STALK], color=style.IDLE, linewidth=1.2)


def _short(nbytes: int, digits: str = ".3g") -> str:
    """Three digits, as of 3.82 MiB; with "#.3g" a last zero stays, as of 7.70 MiB."""
    number, _, unit = format_bytes(nbytes).partition(" ")
    return f"{float(number.replace(',', '')):{digits}} {unit}"


def _in_words(strips: Mapping[str, Sequence[_Column]], subtitle: str) -> str:
    lines = [subtitle] if subtitle else []
    for name, columns in strips.items():
        tallest = max(columns, key=lambda column: column.total)
        lines.append(f"  {name}: at most {format_bytes(tallest.total)}, at {_SAID.get(tallest.name, tallest.name)}")
        for column in columns:
            parts = ", ".join(
                f"{MEMORY_PARTS[part][0]} {format_bytes(getattr(column, part))}"
                for part in _PARTS
                if getattr(column, part)
            )
            lines.append(f"    {_SAID.get(column.name, column.name)}: {parts}")
    return "\n".join(lines)
