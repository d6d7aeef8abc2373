"""QSGD's dice: a number between two levels becomes one of them, each as likely as the other one is far away."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.errors import four_parts
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas
from course_lib.viz.ink.drawing import Drawing

_LEFT, _RIGHT, _TOP, _ROW = 120.0, 560.0, 92.0, 80.0
_WORDS = 596.0
_MOST_LEVELS, _MOST_VALUES = 8, 5
_DOWN, _UP = style.RUN_HUES[1], style.RUN_HUES[2]


def plot_dice(levels: int, shares: Sequence[float]) -> Drawing:
    """A row for each number, given as its share of the norm: the levels, and how likely it becomes which.

    Raises: ValueError for levels or numbers that do not fit, or a share outside 0 to 1.
    """
    _check(levels, shares)
    title = "A number throws dice for its level"
    subtitle = f"the norm is 1 and has {levels} levels; a curve is as broad as its way is likely"
    canvas = Canvas(_TOP + _ROW * len(shares) + 12, title, subtitle, width=WIDE, kinds=["formula"])
    lines = [_draw_row(canvas, levels, share, _TOP + _ROW * row + 34) for row, share in enumerate(shares)]
    return Drawing(canvas, title=title, description="\n".join([subtitle, *lines]), kinds=["formula"])


def _check(levels: int, shares: Sequence[float]) -> None:
    if not 1 <= levels <= _MOST_LEVELS or not 1 <= len(shares) <= _MOST_VALUES:
        values = f"levels={levels}, {len(shares)} numbers"
        rule = f"this picture holds 1 to {_MOST_LEVELS} levels and 1 to {_MOST_VALUES} numbers"
        raise ValueError(four_parts("plot_dice", values, rule, "give fewer"))
    if not all(0 <= share <= 1 for share in shares):
        values, rule = f"shares {', '.join(f'{share:g}' for share in shares)}", "no number is larger than the norm"
        raise ValueError(four_parts("plot_dice", values, rule, "give |x| / norm, from 0 to 1"))


def _draw_row(canvas: Canvas, levels: int, share: float, y: float) -> str:
    """The levels as a line with ticks, the number on it, and its two ways; returns the row in words."""
    below = min(int(share * levels), levels - 1)
    up = share * levels - below
    canvas.path(f"M{_LEFT:g} {y:g}H{_RIGHT:g}", stroke=style.FAINT, stroke_width=3)
    for level in range(levels + 1):
        x = _x(level / levels)
        canvas.path(f"M{x:.5g} {y - 6:g}v12", stroke=style.SOFT, stroke_width=2)
        canvas.text(x, y + 20, str(level), size=SMALL, colour=style.SOFT, align="middle")
    at = _x(share)
    for level, chance, hue in ((below, 1 - up, _DOWN), (below + 1, up, _UP)):
        end = _x(level / levels)
        if chance > 1e-9 and end != at:
            curve = f"M{at:.5g} {y - 6:g}Q{(at + end) / 2:.5g} {y - 46:g} {end:.5g} {y - 8:g}"
            canvas.path(curve, fill="none", stroke=hue, stroke_width=round(1.5 + 6 * chance, 2))
    canvas.path(f"M{at:.5g} {y:g}m-7 0a7 7 0 1 0 14 0a7 7 0 1 0 -14 0", fill=style.INK, stroke=style.PAPER)
    canvas.text(WIDE_EDGE, y, f"{share:g}", bold=True)
    canvas.text(_WORDS, y - 12, f"{1 - up:.0%} become level {below}", colour=_DOWN, bold=True)
    canvas.text(_WORDS, y + 12, f"{up:.0%} become level {below + 1}", colour=_UP, bold=True)
    mean = (below * (1 - up) + (below + 1) * up) / levels
    return f"  {share:g}: level {below} with {1 - up:.0%}, level {below + 1} with {up:.0%}; on average {mean:g}"


def _x(share: float) -> float:
    return _LEFT + share * (_RIGHT - _LEFT)
