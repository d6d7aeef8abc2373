"""What a rank has of a model when backward is through, under each stage of ZeRO: weights, gradients, Adam's states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from course_lib.costs.model.conventions import CONVENTIONS, find_convention
from course_lib.costs.model.states import StateBytes, state_bytes
from course_lib.errors import four_parts
from course_lib.hardware import load_device
from course_lib.units import GB
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis
from course_lib.viz.ink.bars import draw_outline, draw_parts
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, text_on, text_width
from course_lib.viz.ink.canvas_key import draw_key
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.entries import Entry
from course_lib.viz.memory.parts import MEMORY_PARTS
from course_lib.viz.widgets import controls
from course_lib.viz.widgets.controls import Panel, Table, Values
from course_lib.viz.widgets.explorer import Explorer

_KEY, _TOP = 90.0, 120.0  # pixels: the key, the first bar
_FOOT, _LINE = 10.0, 24.0  # below all bars, without words and with
_NAMES, _BAR, _STEP, _SUM = 160.0, 34.0, 52.0, 113.0  # names, a bar, from one bar to the next, sums
_BESIDE = 10.0  # a sum is so far from its bar, or from the line
_MOST = 8
_PARTS = ("weights", "gradients", "optimizer")
_STAGES = ("all on each", "ZeRO-1", "ZeRO-2", "FSDP (ZeRO-3)")
_DEVICE = "h100_sxm_80"
_REACH = 2.0  # the explorer's axis ends at so many times the device's memory, whatever the bars are
_FIRST: dict[str, Any] = {"billions": 7.5, "ranks": 64, "convention": "zero"}
_PRESETS = {
    "7.5B on 64 ranks": _FIRST,
    "70B on 64 ranks": {**_FIRST, "billions": 70.6},
    "405B on 1,024 ranks": {**_FIRST, "billions": 405.9, "ranks": 1024},
}


def plot_states(
    rows: Mapping[str, StateBytes],
    *,
    memory_bytes: float = 0,
    title: str = "What each rank has when backward is through",
    subtitle: str = "",
    reach_bytes: float = 0,
    before: Sequence[StateBytes] = (),
) -> Drawing:
    """A stacked bar for each row; a line at `memory_bytes`, if they are given, is what one device has.

    The axis ends with the longest bar or the line, or at `reach_bytes`, where a longer bar is cut; `before` outlines
    what the bars were before, in their order. Units: GB.
    Raises: ValueError for no rows or more than 8, or a name that is too long.
    """
    _check(rows)
    foot = _TOP + _STEP * len(rows)
    canvas = Canvas(foot + (_LINE if memory_bytes else _FOOT), title, subtitle, width=WIDE, kinds=["formula"])
    shown = [part for part in _PARTS if any(getattr(states, part) for states in rows.values())]
    draw_key(canvas, [Entry(MEMORY_PARTS[part][0], [MEMORY_PARTS[part][1]]) for part in shown], _KEY)
    reach = reach_bytes or max(memory_bytes, *(states.total for states in rows.values()))
    axis = Axis(WIDE_EDGE + _NAMES, WIDE - WIDE_EDGE - _SUM, reach / GB)
    for number, (name, states) in enumerate(rows.items()):
        y = _TOP + number * _STEP
        canvas.text(WIDE_EDGE, y + _BAR / 2, name, bold=True)
        draw_parts(canvas, axis, y, _BAR, [(getattr(states, part) / GB, MEMORY_PARTS[part][1]) for part in _PARTS])
    for number, old in enumerate(before[: len(rows)]):
        draw_outline(canvas, axis, _TOP + number * _STEP, _BAR, old.total / GB)
    if memory_bytes:
        _draw_device(canvas, axis.x(memory_bytes / GB), foot, memory_bytes, len(rows))
    for number, states in enumerate(rows.values()):
        _write_sum(canvas, axis, _TOP + number * _STEP + _BAR / 2, states, memory_bytes)
    return Drawing(canvas, title=title, description=_in_words(rows, memory_bytes, subtitle), kinds=["formula"])


def _draw_device(canvas: Canvas, x: float, foot: float, memory_bytes: float, bars: int) -> None:
    """A line at its memory, set off from the bars, and below it the words."""
    across = "".join(f"M{x:.5g} {_TOP + number * _STEP:g}v{_BAR:g}" for number in range(bars))
    canvas.path(across, stroke=style.PAPER, stroke_width=5, fill="none")
    d = f"M{x:.5g} {_TOP - 8:g}V{foot - 6:g}"
    canvas.path(d, stroke=style.WRONG, stroke_width=2.2, stroke_dasharray="9 4", fill="none")
    words = f"one GPU has {_gb(memory_bytes)}"
    canvas.text(x, foot + 6, words, size=SMALL, colour=style.WRONG, align="middle")


def _write_sum(canvas: Canvas, axis: Axis, y: float, states: StateBytes, memory_bytes: float) -> None:
    """Behind the bar; where the line would cross it, on the bar's last part.

    If that is short, it stands behind the line, and says that the bar, which ends before it, fits.
    """
    words, line = _gb(states.total), axis.x(memory_bytes / GB)
    width, end = text_width(words), min(axis.x(states.total / GB), axis.right)
    x, colour = end + _BESIDE, style.INK
    if x - 7 < line < x + width + 7:
        part = next(part for part in reversed(_PARTS) if getattr(states, part))
        hue, long = MEMORY_PARTS[part][1], axis.x(getattr(states, part) / GB) - axis.x(0)
        if width + 2 * _BESIDE <= long:
            x, colour = end - _BESIDE - width, text_on(hue)
        else:
            x, words = line + _BESIDE, f"{words}, fits"
    canvas.text(x, y, words, colour=colour)


def zero_explorer(billions: float = _FIRST["billions"], ranks: int = _FIRST["ranks"]) -> Explorer:
    """Controls for parameters, ranks and bytes of each parameter, above what every stage of ZeRO leaves on a rank.

    The line is the memory of an H100 of 80 GB. An outline is the picture before. `billions` and `ranks` come first.
    """
    return Explorer(zero_panel(billions, ranks))


def zero_panel(billions: float = _FIRST["billions"], ranks: int = _FIRST["ranks"]) -> Panel:
    """The same without widgets, with a table of each part's bytes."""
    return Panel(
        draw=_drawn,
        controls={
            "billions": controls.decimal("billion param.", billions),
            "ranks": controls.number("ranks", ranks),
            "convention": controls.choice("counted as", _FIRST["convention"], list(CONVENTIONS)),
        },
        presets=_PRESETS,
        compares=True,
        table=_bytes,
    )


def _drawn(*, before: Values | None, **now: Any) -> Drawing:
    """One bar for each stage."""
    rows, old = _stages(**now), list(_stages(**before).values()) if before else []
    counted, memory_bytes = find_convention(now["convention"]), load_device(_DEVICE).memory_bytes()
    each = f"{counted.weights} + {counted.gradients} + {counted.optimizer}"
    ranks = f"{now['ranks']:,} rank{'s' * (now['ranks'] != 1)}"
    return plot_states(
        rows,
        memory_bytes=memory_bytes,
        title=f"{now['billions']:g} billion parameters on {ranks}, after backward",
        subtitle=f"{each} bytes a parameter: weights, gradients, optimizer",
        reach_bytes=_REACH * memory_bytes,
        before=old,
    )


def _bytes(**now: Any) -> Table:
    """Each part under each stage, and what they are together."""
    stages = _stages(**now)
    parts = [[MEMORY_PARTS[part][0], *(f"{getattr(held, part):,}" for held in stages.values())] for part in _PARTS]
    return [["", *stages], *parts, ["together", *(f"{held.total:,}" for held in stages.values())]]


def _stages(*, billions: float, ranks: int, convention: str) -> dict[str, StateBytes]:
    """By name, what each leaves."""
    if not 0 < billions < 1e6:
        rule, way_out = "a model has parameters", "give more than 0 and less than a million, in billions"
        raise ValueError(four_parts("zero_explorer", f"{billions:g} billion parameters", rule, way_out))
    counted, parameters = find_convention(convention), round(billions * 1e9)
    return {
        name: state_bytes(parameters, counted, zero_stage=stage, shards=ranks) for stage, name in enumerate(_STAGES)
    }


def _check(rows: Mapping[str, StateBytes]) -> None:
    if not 1 <= len(rows) <= _MOST:
        rule, way_out = f"this picture holds 1 to {_MOST} bars", "draw several pictures"
        raise ValueError(four_parts("plot_states", f"{len(rows)} rows", rule, way_out))
    for name in rows:
        if text_width(name, bold=True) > _NAMES - 8:
            rule = "a bar's name fits beside it"
            raise ValueError(four_parts("plot_states", f"row {name!r}", rule, "shorten it"))


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
