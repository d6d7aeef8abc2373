"""Where 16 levels of 4 bits lie among normal weights: at even distances, and at a normal distribution's quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

from course_lib.errors import four_parts
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.memory.parts import WEIGHTS

_TOP, _HILL, _TICKS, _STEP = 96.0, 92.0, 26.0, 190.0  # pixels: the first row, a curve, levels below it, a row
_NAMES = 150.0  # of the rows
_MOST = 3
_WIDEST = 3.0  # standard deviations of the largest weight, which is 1
_POINTS = 120


def plot_levels(levels: Mapping[str, Sequence[float]], *, title: str = "16 levels for normal weights") -> Drawing:
    """For each row of levels, all between -1 and 1, the bell of the weights, where they lie, and how full each is.

    The largest weight of a block is 1; it is drawn as three standard deviations. A stripe of the bell is what goes to
    one level: all weights nearer to it than to its neighbours.
    Raises: ValueError for no rows or more than a page holds, and for levels that do not rise from -1 to 1.
    """
    if not 1 <= len(levels) <= _MOST:
        values, way_out = f"{len(levels)} rows", "draw fewer"
        raise ValueError(four_parts("plot_levels", values, f"this picture holds 1 to {_MOST} rows", way_out))
    for name, row in levels.items():
        if len(row) < 2 or [*row] != sorted(row) or row[0] < -1 or row[-1] > 1:
            rule = "levels rise from -1 to 1, the block's largest weight"
            raise ValueError(four_parts("plot_levels", f"levels[{name!r}]", rule, "divide by the largest and sort"))
    subtitle = "a stripe of the bell holds the weights that become one level; below each bell its levels"
    canvas = Canvas(_TOP + _STEP * len(levels), title, subtitle, width=WIDE, kinds=["formula"])
    lines = [subtitle]
    for number, (name, row) in enumerate(levels.items()):
        foot = _TOP + number * _STEP + _HILL
        shares = _shares(row)
        _draw_bell(canvas, row, foot)
        _draw_levels(canvas, row, foot)
        canvas.text(WIDE_EDGE, foot - 20, name, bold=True)
        most = f"fullest: {max(shares):.0%}"
        least = f"emptiest: {min(shares):.1%}"
        canvas.text(WIDE_EDGE, foot + 4, most, size=SMALL, colour=style.SOFT)
        canvas.text(WIDE_EDGE, foot + 26, least, size=SMALL, colour=style.SOFT)
        written = ", ".join(f"{level:.2f}" for level in row)
        lines.append(f"  {name}: levels {written}; {most} of the weights, {least}")
    return Drawing(canvas, title=title, description="\n".join(lines), kinds=["formula"])


def _x(value: float) -> float:
    left, right = WIDE_EDGE + _NAMES, WIDE - WIDE_EDGE
    return left + (right - left) * (value + 1) / 2


def _height(value: float) -> float:
    """Of the bell over a weight."""
    return exp(-((value * _WIDEST) ** 2) / 2)


def _borders(row: Sequence[float]) -> list[float]:
    """Between two levels a weight goes to the nearer one."""
    return [-1.0, *((one + other) / 2 for one, other in zip(row, row[1:], strict=False)), 1.0]


def _shares(row: Sequence[float]) -> list[float]:
    """Of the weights, by level."""
    points = [-1 + (2 * point + 1) / 4000 for point in range(4000)]
    heights, borders = [_height(point) for point in points], _borders(row)
    total = sum(heights)
    return [
        sum(height for point, height in zip(points, heights, strict=True) if low <= point < high) / total
        for low, high in zip(borders, borders[1:], strict=False)
    ]


def _draw_bell(canvas: Canvas, row: Sequence[float], foot: float) -> None:
    """Stripe by stripe; every second one is paler."""
    borders = _borders(row)
    for number, (low, high) in enumerate(zip(borders, borders[1:], strict=False)):
        steps = max(2, round(_POINTS * (high - low) / 2))
        places = [low + (high - low) * step / steps for step in range(steps + 1)]
        top = "".join(f"L{_x(place):.1f} {foot - _HILL * _height(place):.1f}" for place in places)
        d = f"M{_x(low):.1f} {foot:g}{top}L{_x(high):.1f} {foot:g}Z"
        canvas.path(d, fill=WEIGHTS, fill_opacity=1.0 if number % 2 else 0.55)
    canvas.path(f"M{_x(-1):g} {foot + 0.5:g}H{_x(1):g}", stroke=style.SOFT, stroke_width=1.0)


def _draw_levels(canvas: Canvas, row: Sequence[float], foot: float) -> None:
    d = "".join(f"M{_x(level):.1f} {foot + 4:g}v{_TICKS:g}" for level in row)
    canvas.path(d, stroke=style.INK, stroke_width=3.0, fill="none")
    for level, words in ((-1.0, "−largest"), (0.0, "0"), (1.0, "largest")):
        align = {-1.0: "start", 0.0: "middle", 1.0: "end"}[level]
        canvas.text(_x(level), foot + _TICKS + 20, words, size=SMALL, colour=style.SOFT, align=align)
