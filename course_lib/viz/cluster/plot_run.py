"""A training run by its own lines of JSON: loss, norm, throughput, MFU, slowest rank over the steps, and its alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course_lib.errors import four_parts
from course_lib.gauges.run_log import SLOWEST, Alarm, LoggedStep, alarms, columns, read_run
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.lines import Line, draw_line, draw_marks
from course_lib.viz.ink.picture import Picture

_LEFT, _RIGHT = style.MARGIN + 0.85, style.MARGIN + 0.1
_LOSS, _OTHER, _GAP, _FOOT, _LINE = 2.1, 1.15, 0.62, 0.85, 2.4  # inches, and points
_SAID = {SLOWEST: f"{SLOWEST}: its own work, as a multiple of the usual"}
_SPARSE = 0.5  # of the steps: what fewer of them tell is drawn with its points
_LEAST_TOP = {SLOWEST: 2}  # of an axis: whoever is slow is then above the middle, and noise is not
_MOST = 6  # ranks that are named; the words name all


@sheet.course_style()
def plot_run(run: str | Path | Sequence[LoggedStep], *, title: str = "") -> Picture:
    """The run of a folder of `train`, or of a file of such lines; a panel for each thing that its lines tell.

    A dashed upright marks where a spike, a fall of the throughput, a slow rank or a number that is not finite begins.
    Steps that `read_run` has read may be given instead.
    Raises: ValueError for what cannot be read, or has no step with a finite loss.
    """
    steps, named = (read_run(run), str(run)) if isinstance(run, str | Path) else (run, "the run")
    told = {name: values for name, values in columns(steps).items() if any(map(math.isfinite, values.values()))}
    if "loss" not in told:
        rule, way_out = "a line needs a finite loss", "wait for its first step, or name another run"
        raise ValueError(four_parts("plot_run", f"{named} has {len(steps)} steps", rule, way_out))
    found = [one for one in alarms(steps) if one.column in told]
    numbers = [one.step for one in steps]
    title = title or f"A run of {numbers[-1]} steps"
    height = style.HEADER + _LOSS + (len(told) - 1) * (_GAP + _OTHER) + 0.36 + _FOOT
    subtitle = "dashed: where something asks for a look" if found else "as its own lines tell"
    figure, page = sheet.new_page(height, title, subtitle)
    top = style.HEADER + 0.42
    for name, values in told.items():
        its_own = [one for one in found if one.column == name]
        marks.label(page, _LEFT, top - 0.24, _SAID.get(name, name), colour=style.SOFT, align="left")
        _name_ranks(page, top - 0.24, its_own)
        panel = _LOSS if name == "loss" else _OTHER
        chart = sheet.chart_axes(figure, _LEFT, top, style.PAGE_WIDTH - _LEFT - _RIGHT, panel)
        _draw(chart, name, values, numbers, last=name == [*told][-1])
        for one in its_own:
            chart.axvline(one.step, color=style.WRONG, linewidth=1.4, linestyle=(0, (4, 3)), zorder=3)
        top += panel + _GAP
    return Picture(figure, title=title, description=_in_words(told, numbers, found), kinds=["measured"])


def _name_ranks(page: Axes, y: float, found: Sequence[Alarm]) -> None:
    """The ranks that are slow, at the right end of the panel's name."""
    ranks = [one.rank for one in found if one.rank is not None][:_MOST]
    for place, rank in enumerate(reversed(ranks)):
        marks.rank_badge(page, style.PAGE_WIDTH - _RIGHT - 0.37 - 0.82 * place, y, rank)


def _draw(chart: Axes, name: str, points: Mapping[int, float], numbers: Sequence[int], *, last: bool) -> None:
    """What some steps do not say is no gap; what was not finite is one."""
    line = Line(name, style.INK, points, _LINE)
    draw_line(chart, line)
    if len(points) < _SPARSE * len(numbers) or len(points) == 1:
        draw_marks(chart, line, 4)
    chart.set_xlim(numbers[0], max(numbers[-1], numbers[0] + 1))
    chart.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    chart.yaxis.set_major_locator(MaxNLocator(5 if name == "loss" else 3, integer=name == SLOWEST))
    if name != "loss":
        most = 1.1 * max(filter(math.isfinite, points.values()))
        chart.set_ylim(0, max(most, _LEAST_TOP.get(name, 0)) or 1)
    form = ".0%" if name == "MFU" else ",.0f" if name == "tokens/s" else "g"
    chart.yaxis.set_major_formatter(lambda value, _: f"{value:{form}}")
    chart.tick_params(length=0, pad=6, labelbottom=last)
    if last:
        chart.set_xlabel("step", labelpad=6)
    charts.centre_on_ticks(chart)


def _in_words(told: Mapping[str, Mapping[int, float]], numbers: Sequence[int], found: Sequence[Alarm]) -> str:
    lines = [f"steps {numbers[0]} to {numbers[-1]}"]
    for name, values in told.items():
        finite = [value for value in values.values() if math.isfinite(value)]
        lines.append(f"  {name}: {finite[0]:.4g} first, {finite[-1]:.4g} last, {min(finite):.4g} to {max(finite):.4g}")
    return "\n".join([*lines, *(f"  look: {one.said}" for one in found)])
