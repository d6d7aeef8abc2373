"""A bar in parts on an axis that may be too short for it, and the outline of the bar before."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis
from course_lib.viz.ink.canvas import Canvas, rectangles

_CUT, _BROKEN, _GHOST = 6.0, 3.0, 5.0  # from the end to a longer bar's gaps; a gap; from a bar to the one before


def draw_parts(canvas: Canvas, axis: Axis, y: float, tall: float, parts: Sequence[tuple[float, str]]) -> None:
    """Values in their colours, one after the other; two gaps near the end of the axis say that the bar goes on."""
    x = axis.left
    for value, hue in parts:
        wide = axis.x(value) - axis.left
        seen = min(x + wide, axis.right) - x
        if seen > 0:
            canvas.box(x, y, seen, tall, fill=hue)
        x += wide
    if x > axis.right + 0.01:
        gaps = [(axis.right - number * _CUT, y, _BROKEN, tall) for number in (1, 2)]
        canvas.path(rectangles(gaps), fill=style.PAPER)


def draw_outline(canvas: Canvas, axis: Axis, y: float, tall: float, value: float) -> None:
    """How long the bar was before, open where it went on beyond the axis."""
    x, top, bottom = min(axis.x(value), axis.right), y - _GHOST, y + tall + _GHOST
    end = f"V{bottom:g}" if x < axis.right else f"M{x:.5g} {bottom:g}"
    d = f"M{axis.left:g} {top:g}H{x:.5g}{end}H{axis.left:g}"
    canvas.path(d, fill="none", stroke=style.INK, stroke_width=1.4, stroke_dasharray="4 3")
