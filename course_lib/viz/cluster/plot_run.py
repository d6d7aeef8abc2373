"""A training run by its own lines of JSON: loss, gradient norm, throughput and MFU over the steps, and its alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course_lib.errors import four_parts
from course_lib.gauges.run_log import Alarm, alarms, columns, read_run
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.lines import Line, draw_line
from course_lib.viz.ink.picture import Picture

_LEFT, _RIGHT = style.MARGIN + 0.85, style.MARGIN + 0.1
_HEIGHTS = {"loss": 2.1, "gradient norm": 1.15, "tokens/s": 1.15, "MFU": 1.15}  # inches
_GAP, _FOOT, _LINE = 0.62, 0.85, 2.4


@sheet.course_style()
def plot_run(run: str | Path, *, title: str = "") -> Picture:
    """The run of a folder of `train`, or of a file of such lines; a panel for each thing that its lines tell.

    A dashed upright marks where a spike, a fall of the throughput or a number that is not finite begins.
    Raises: ValueError for what cannot be read, or has no step with a finite loss.
    """
    steps = read_run(run)
    told = columns(steps)
    if not any(map(math.isfinite, told.get("loss", ()))):
        rule, way_out = "a line needs a finite loss", "wait for its first step, or name another run"
        raise ValueError(four_parts("plot_run", f"{run} has {len(steps)} steps", rule, way_out))
    told = {name: values for name, values in told.items() if any(map(math.isfinite, values))}
    found = [one for one in alarms(steps) if one.column in told]
    numbers = [one.step for one in steps]
    title = title or f"A run of {numbers[-1]} steps"
    height = style.HEADER + sum(_HEIGHTS[name] + _GAP for name in told) - _GAP + 0.36 + _FOOT
    subtitle = "dashed: where something asks for a look" if found else "as its own lines tell"
    figure, page = sheet.new_page(height, title, subtitle)
    top = style.HEADER + 0.42
    for name, values in told.items():
        marks.label(page, _LEFT, top - 0.24, name, colour=style.SOFT, align="left")
        width = style.PAGE_WIDTH - _LEFT - _RIGHT
        chart = sheet.chart_axes(figure, _LEFT, top, width, _HEIGHTS[name])
        _draw(chart, name, dict(zip(numbers, values, strict=True)), last=name == [*told][-1])
        for one in found:
            if one.column == name:
                chart.axvline(one.step, color=style.WRONG, linewidth=1.4, linestyle=(0, (4, 3)), zorder=3)
        top += _HEIGHTS[name] + _GAP
    return Picture(figure, title=title, description=_in_words(told, numbers, found), kinds=["measured"])


def _draw(chart: Axes, name: str, points: Mapping[int, float], *, last: bool) -> None:
    draw_line(chart, Line(name, style.INK, points, _LINE))
    first, end = min(points), max(points)
    chart.set_xlim(first, max(end, first + 1))
    chart.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    chart.yaxis.set_major_locator(MaxNLocator(5 if name == "loss" else 3))
    if name != "loss":
        chart.set_ylim(0, 1.1 * max(filter(math.isfinite, points.values())) or 1)
    form = ".0%" if name == "MFU" else ",.0f" if name == "tokens/s" else "g"
    chart.yaxis.set_major_formatter(lambda value, _: f"{value:{form}}")
    chart.tick_params(length=0, pad=6, labelbottom=last)
    if last:
        chart.set_xlabel("step", labelpad=6)
    charts.centre_on_ticks(chart)


def _in_words(told: Mapping[str, Sequence[float]], numbers: Sequence[int], found: Sequence[Alarm]) -> str:
    lines = [f"steps {numbers[0]} to {numbers[-1]}"]
    for name, values in told.items():
        finite = [value for value in values if math.isfinite(value)]
        lines.append(f"  {name}: {finite[0]:.4g} first, {finite[-1]:.4g} last, {min(finite):.4g} to {max(finite):.4g}")
    return "\n".join([*lines, *(f"  look: {one.said}" for one in found)])
