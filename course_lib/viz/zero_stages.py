"""What a rank has of a model when backward is through, under each stage of ZeRO: weights, gradients, Adam's states."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from course_lib.costs.model.conventions import CONVENTIONS, find_convention
from course_lib.costs.model.states import StateBytes, state_bytes
from course_lib.errors import four_parts
from course_lib.hardware import load_device
from course_lib.units import GB
from course_lib.viz import explorer, marks, sheet, style
from course_lib.viz.entries import Entry
from course_lib.viz.explorer import Explorer
from course_lib.viz.keys import draw_key
from course_lib.viz.memory_parts import MEMORY_PARTS
from course_lib.viz.picture import Picture
from course_lib.viz.style import WRONG

_NAMES, _BAR, _STEP, _SUM = 1.9, 0.4, 0.62, 1.35  # inches: names, a bar, from one bar to the next, sums
_MOST = 8
_PARTS = ("weights", "gradients", "optimizer")
_STAGES = ("all on each", "ZeRO-1", "ZeRO-2", "FSDP (ZeRO-3)")
_DEVICE = "h100_sxm_80"


@sheet.course_style()
def plot_states(
    rows: Mapping[str, StateBytes],
    *,
    memory_bytes: float = 0,
    title: str = "What each rank has when backward is through",
    subtitle: str = "",
) -> Picture:
    """A stacked bar for each row; a line at `memory_bytes`, if they are given, is what one device has.

    Units: GB.
    Raises: ValueError for no rows or more than 8, or a name that is too long.
    """
    _check(rows)
    top = style.HEADER + 0.46
    figure, page = sheet.new_page(top + _STEP * len(rows) + (0.5 if memory_bytes else 0.22), title, subtitle)
    left = style.MARGIN + _NAMES
    shown = [part for part in _PARTS if any(getattr(states, part) for states in rows.values())]
    draw_key(page, [Entry(*_entry(part)) for part in shown], left)
    width = style.PAGE_WIDTH - style.MARGIN - _SUM - left
    scale = width / max(memory_bytes, *(states.total for states in rows.values()))
    for number, (name, states) in enumerate(rows.items()):
        y = top + number * _STEP
        marks.label(page, style.MARGIN, y + _BAR / 2, name, bold=True, align="left")
        _draw_bar(page, left, y, states, scale)
        x = _clear_of(
            left + memory_bytes * scale, left + states.total * scale + 0.12, sheet.text_width(_gb(states.total))
        )
        marks.label(page, x, y + _BAR / 2, _gb(states.total), align="left")
    if memory_bytes:
        x, below = left + memory_bytes * scale, top + _STEP * len(rows)
        page.plot([x, x], [top - 0.1, below - 0.05], color=style.PAPER, linewidth=5, zorder=5)
        page.plot([x, x], [top - 0.1, below - 0.05], color=WRONG, linewidth=2.2, linestyle=(0, (4, 2)), zorder=6)
        marks.label(page, x, below + 0.12, f"one GPU has {_gb(memory_bytes)}", colour=WRONG, size=style.SMALL_SIZE)
    return Picture(figure, title=title, description=_in_words(rows, memory_bytes, subtitle), kinds=["formula"])


def _clear_of(line: float, x: float, width: float) -> float:
    """Where a text that begins at `x` stands, if it must not lie on the line."""
    return line + 0.12 if x - 0.08 < line < x + width + 0.08 else x


def zero_explorer() -> Explorer:
    """Controls for parameters, ranks and bytes of each parameter, above what every stage of ZeRO leaves on a rank.

    The line is the memory of an H100 of 80 GB.
    """
    return Explorer(
        _stages,
        {
            "billions": explorer.decimal("billion param.", 7.5),
            "ranks": explorer.number("ranks", 64),
            "convention": explorer.choice("counted as", "zero", list(CONVENTIONS)),
        },
    )


def _stages(*, billions: float, ranks: int, convention: str) -> Picture:
    """One bar for each stage."""
    if not 0 < billions < 1e6:
        rule, way_out = "a model has parameters", "give more than 0, in billions"
        raise ValueError(four_parts("zero_explorer", f"{billions:g} billion parameters", rule, way_out))
    counted = find_convention(convention)
    rows = {
        name: state_bytes(round(billions * 1e9), counted, zero_stage=stage, shards=ranks)
        for stage, name in enumerate(_STAGES)
    }
    title = f"{billions:g} billion parameters on {ranks:,} rank{'s' * (ranks != 1)}, after backward"
    each = f"{counted.weights} + {counted.gradients} + {counted.optimizer}"
    subtitle = f"{each} bytes a parameter: weights, gradients, optimizer"
    return plot_states(rows, memory_bytes=load_device(_DEVICE).memory_bytes(), title=title, subtitle=subtitle)


def _check(rows: Mapping[str, StateBytes]) -> None:
    if not 1 <= len(rows) <= _MOST:
        rule, way_out = f"this picture holds 1 to {_MOST} bars", "draw several pictures"
        raise ValueError(four_parts("plot_states", f"{len(rows)} rows", rule, way_out))
    for name in rows:
        if sheet.text_width(name, weight=600) > _NAMES - 0.1:
            rule = "a bar's name fits beside it"
            raise ValueError(four_parts("plot_states", f"row {name!r}", rule, "shorten it"))


def _entry(part: str) -> tuple[str, list[str]]:
    name, hue = MEMORY_PARTS[part]
    return name, [hue]


def _draw_bar(page: Axes, x: float, y: float, states: StateBytes, scale: float) -> None:
    """One after the other; a part too thin to see is left to the sum."""
    for part in _PARTS:
        wide = getattr(states, part) * scale
        if wide > 0:
            marks.box(page, x, y, wide, _BAR, fill=MEMORY_PARTS[part][1], corner=0)
        x += wide


def _gb(nbytes: float) -> str:
    """Three digits."""
    return f"{nbytes / GB:,.3g} GB" if nbytes < 1000 * GB else f"{nbytes / GB:,.0f} GB"


def _in_words(rows: Mapping[str, StateBytes], memory_bytes: float, subtitle: str) -> str:
    lines = [subtitle] if subtitle else []
    for name, states in rows.items():
        parts = ", ".join(f"{MEMORY_PARTS[part][0]} {_gb(getattr(states, part))}" for part in _PARTS)
        lines.append(f"  {name}: {_gb(states.total)} ({parts})")
    if memory_bytes:
        lines.append(f"  one GPU has {_gb(memory_bytes)}")
    return "\n".join(lines)
