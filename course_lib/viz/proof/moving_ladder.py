"""The ladder in motion: a run climbs until a rung breaks, while its loss curve is drawn beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import EDGE, SMALL, WIDTH, Canvas
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.sweep import FIRST_S, LOOP_S, Sweep, draw_sweep
from course_lib.viz.proof.ladder import APART, EQUAL
from course_lib.viz.proof.museum import Fall, broken_at, fall_words, share

_TOP, _ROW, _RIGHT = 106.0, 38.0, 330.0  # the ladder's
_CHART_LEFT, _CHART_TOP, _CHART_FOOT = 384.0, 138.0, 318.0
_FIRST_S, _RUNG_S = 1.0, 1.1
_SWEEP = Sweep(_CHART_LEFT - 6, WIDTH - EDGE + 8, 1.0)


def animate_ladder(name: str, fall: Fall) -> Drawing:
    """One run from rung to rung, up to the one that breaks; `name` says what is wrong with it.

    Beside it its loss and, broad and grey, that of one device.
    Raises: ValueError for a rung that is not there, or a name that does not fit on a line.
    """
    title = "The ladder and the loss curve"
    foot = _TOP + _ROW * len(fall.rungs)
    canvas = Canvas(foot + 46, title, name, kinds=["measured"], lasts_s=LOOP_S, begins_s=FIRST_S)
    canvas.text(EDGE, _TOP - 14, "rung by rung against one device", size=SMALL, colour=style.SOFT)
    for rail in (EDGE + 2, _RIGHT):
        canvas.path(f"M{rail:g} {_TOP:g}V{foot + 14:g}", stroke=style.FAINT, stroke_width=4)
    broken = broken_at(fall)
    for number, rung in enumerate(fall.rungs):
        _draw_rung(canvas, foot - (number + 1) * _ROW, number, rung, broken, fall.deviation)
    _draw_climber(canvas, foot, min(broken, len(fall.rungs) - 1))
    _draw_curves(canvas, fall)
    ends = canvas.group(canvas.appears(_SWEEP.passes(1)))
    canvas.text(_CHART_LEFT, foot + 14, f"last quarter off by {share(fall.off)}", bold=True, parent=ends)
    return Drawing(canvas, title=title, description=f"{name}: {fall_words(fall)}", kinds=["measured"])


def _reaches(number: int) -> float:
    """When in the loop a rung has been tried."""
    return _FIRST_S + _RUNG_S * (number + 1)


def _draw_rung(canvas: Canvas, top: float, number: int, rung: str, broken: int, deviation: float | None) -> None:
    """Its name, and once it has been tried what came out."""
    y, foot, left = top + _ROW / 2, top + _ROW, EDGE + 2
    tried = _reaches(min(number, broken))
    canvas.text(EDGE + 16, y, str(number + 1), colour=style.SOFT)
    canvas.text(EDGE + 36, y, rung)
    group = canvas.group(canvas.appears(tried))
    whole: dict[str, Any] = {"motion": canvas.shown(0, tried), "opacity": 0} if number == broken else {}
    canvas.path(f"M{left:g} {foot:g}H{_RIGHT:g}", stroke=style.FAINT, stroke_width=3, **whole)
    words, colour = ("equal", EQUAL) if number < broken else ("not tried", style.SOFT)
    if number == broken:
        middle = (left + _RIGHT) / 2
        ends = f"M{left:g} {foot:g}L{middle - 9:g} {foot + 6:g}M{middle + 9:g} {foot + 6:g}L{_RIGHT:g} {foot:g}"
        canvas.path(ends, stroke=APART, stroke_width=3, parent=group)
        words, colour = f"apart by {share(deviation)}", APART
    canvas.text(_RIGHT - 14, y, words, colour=colour, align="end", bold=number <= broken, parent=group)


def _draw_climber(canvas: Canvas, foot: float, highest: int) -> None:
    """A frame that goes up and stays at the last rung that was tried."""
    top = foot - (highest + 1) * _ROW
    frames = [(0.0, f"transform:translateY({highest * _ROW:g}px)")]
    for number in range(1, highest + 1):
        below = highest - number
        frames.append((_reaches(number) - 0.8 * _RUNG_S, f"transform:translateY({(below + 1) * _ROW:g}px)"))
        frames.append((_reaches(number) - 0.4 * _RUNG_S, f"transform:translateY({below * _ROW:g}px)"))
    motion = canvas.moving(*frames, (_reaches(highest), "transform:translateY(0px)"))
    look: dict[str, Any] = {"fill": "none", "stroke": style.INK, "stroke_width": 2, "corner": 8}
    canvas.box(EDGE + 7, top + 5, _RIGHT - EDGE - 12, _ROW - 10, motion=motion, **look)


def _draw_curves(canvas: Canvas, fall: Fall) -> None:
    """Both losses on one scale, drawn from left to right while the run climbs."""
    left, right, foot = _CHART_LEFT, WIDTH - EDGE, _CHART_FOOT
    low, high = min(*fall.losses, *fall.reference), max(*fall.losses, *fall.reference)
    steps = max(len(fall.losses), len(fall.reference))

    def line(losses: Sequence[float]) -> str:
        points = [
            f"{left + (right - left) * number / max(1, steps - 1):.1f} "
            f"{foot - (foot - _CHART_TOP) * (loss - low) / ((high - low) or 1):.1f}"
            for number, loss in enumerate(losses)
        ]
        return "M" + "L".join(points)

    canvas.text(left, _TOP - 14, "loss", size=SMALL, colour=style.SOFT)
    for value, y in ((high, _CHART_TOP), (low, foot)):
        canvas.path(f"M{left:g} {y:g}H{right:g}", stroke=style.FAINT)
        canvas.text(left - 8, y, f"{value:.3g}", size=SMALL, colour=style.SOFT, align="end")
    look: dict[str, Any] = {"fill": "none", "stroke_linejoin": "round"}
    canvas.path(line(fall.reference), stroke=style.tint(style.INK, 0.3), stroke_width=9, **look)
    canvas.path(line(fall.losses), stroke=APART, stroke_width=2.4, **look)
    for x, name, hue, wide in (
        (left, "one device", style.tint(style.INK, 0.3), 9),
        (left + 124, "this run", APART, 2.4),
    ):
        canvas.path(f"M{x:g} {foot + 42:g}h18", stroke=hue, stroke_width=wide)
        canvas.text(x + 25, foot + 42, name, size=SMALL, colour=style.SOFT)
    for number, align in ((1, "start"), (steps, "end")):
        words = f"step {number}" if number == 1 else str(number)
        canvas.text(left if number == 1 else right, foot + 18, words, size=SMALL, colour=style.SOFT, align=align)
    draw_sweep(canvas, _SWEEP, _CHART_TOP - 8, foot + 6)
