"""Lines of a chart: what goes through points, what stands beside as marks, and their names at their ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from course_lib.viz.ink import charts, style

_PERIOD = 6.0  # widths of a line, from one dash to the next
_DOTS = 0.25  # below this share dashes would be too short to be seen, so there are round dots, broader than the line
_HAIR = 1e-9  # of a chart's height
_NAME_GAP = 0.03  # of the chart's width, between a line's end and its name


class Line(NamedTuple):
    """A line's name and hue, and the points it goes through."""

    name: str
    hue: str
    points: Mapping[Any, float]
    width: float = 3.0
    shown: float = 1.0  # the share of it that is drawn, as dashes


def algorithm_line(algorithm: str, points: Mapping[Any, float], width: float = 3.0) -> Line:
    """A line in the algorithm's own hue, under the name that figures give it."""
    return Line(charts.algorithm_name(algorithm), style.ALGORITHM_HUES[algorithm], points, width)


def draw_line(chart: Axes, line: Line) -> None:
    """From point to point, with round ends; as dashes where a part of it is to show what lies beneath."""
    places = sorted(line.points)
    heights = [line.points[place] for place in places]
    look: dict[str, Any] = {"color": line.hue, "linewidth": line.width, "solid_capstyle": "round", "zorder": 2}
    if line.shown < _DOTS:
        look |= {"linewidth": 1.9 * line.width, "linestyle": (0, (0.01, 2)), "dash_capstyle": "round", "zorder": 3}
    elif line.shown < 1:
        look["linestyle"] = (0, (_PERIOD * line.shown, _PERIOD * (1 - line.shown)))
    chart.plot(places, heights, **look)


def draw_dashed(chart: Axes, points: Mapping[Any, float], colour: str = style.SOFT, zorder: float = 1) -> None:
    """What is promised, or what nothing can beat."""
    look: dict[str, Any] = {"linewidth": 1.5, "linestyle": (0, (4, 3))}
    chart.plot([*points], [*points.values()], color=colour, zorder=zorder, **look)


def draw_marks(chart: Axes, line: Line, number: int) -> None:
    """What ran; of marks upon each other the later ones, by `number`, are smaller, so that all are seen."""
    places = sorted(line.points)
    heights = [line.points[place] for place in places]
    look: dict[str, Any] = {"marker": "o", "markersize": 12 - 1.6 * number, "markeredgewidth": 1.2}
    look |= {"markeredgecolor": style.PAPER, "color": line.hue, "linestyle": "none"}
    chart.plot(places, heights, zorder=3, clip_on=False, **look)


def name_marks(chart: Axes, line: Line) -> None:
    """Beside the last mark."""
    last = max(line.points)
    look: dict[str, Any] = {"color": line.hue, "weight": 600}
    charts.write(chart, last, line.points[last], line.name, within="data", right=11, **look)


def name_ends(chart: Axes, lines: Sequence[Line], *, least: float, alike: float = 0.0) -> None:
    """Each line's name right of the chart, at its last finite point or joined to it; `least` is of the height.

    So is `alike`: lines that end nearer lie upon each other, and their names stand in the lines' order, from above.
    """
    ends = [next(line.points[at] for at in sorted(line.points, reverse=True) if _finite(line, at)) for line in lines]
    true = [min(max(_height_of(chart, end), 0.0), 1.0) for end in ends]
    for line, start, height in zip(lines, true, apart(together(true, alike), least), strict=True):
        leader = ([0.995, 0.2 * _NAME_GAP + 0.995, 0.9 * _NAME_GAP + 1], [start, start, height])
        chart.plot(*leader, color=line.hue, linewidth=1, clip_on=False, transform=chart.transAxes, zorder=1)
        charts.write(chart, 1 + 1.2 * _NAME_GAP, height, line.name, color=line.hue, weight=600)


def _finite(line: Line, place: Any) -> bool:
    return math.isfinite(line.points[place])


def _height_of(chart: Axes, value: float) -> float:
    """Where a value lies on the chart's vertical axis: 0 at its foot, 1 at its top."""
    across = chart.get_xlim()[0]
    return float(chart.transLimits.transform(chart.transScale.transform((across, value)))[1])


def together(heights: Sequence[float], alike: float) -> list[float]:
    """The same heights, but those nearer than `alike` to the next one as good as equal, each a hair below the last."""
    made, group = [*heights], list[int]()
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    for i, above in zip(order, [*order[1:], None], strict=True):
        group.append(i)
        if above is None or heights[above] - heights[i] >= alike:
            mean = sum(heights[k] for k in group) / len(group)
            made = [mean - _HAIR * k if k in group else height for k, height in enumerate(made)]
            group = []
    return made


def apart(heights: Sequence[float], least: float) -> list[float]:
    """The same heights in the same order, moved as little as keeps all of them `least` apart and within 0 to 1."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = [heights[i] for i in order]
    for _ in range(100):
        for i in range(len(moved) - 1):
            lacking = least - (moved[i + 1] - moved[i])
            if lacking > 0:
                moved[i] -= lacking / 2
                moved[i + 1] += lacking / 2
        shift = max(0.0, -moved[0]) - max(0.0, moved[-1] - 1)
        moved = [height + shift for height in moved]
    return [moved[order.index(i)] for i in range(len(heights))]
