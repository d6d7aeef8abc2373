"""The share of a long run that trains, against the time between checkpoints: formulas, and runs that were played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from course_lib.errors import four_parts
from course_lib.planner.reliability import (
    Reliability,
    daly_interval_s,
    first_order_goodput,
    goodput,
    young_interval_s,
)
from course_lib.viz.ink import charts, lines, sheet, style
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.lines import Line
from course_lib.viz.ink.picture import Picture

_LEFT, _HEIGHT = style.MARGIN + 0.8, 5.625
_TICKS = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 864_000)
_POINTS = 160
_FLOOR = 0.05  # where the picture ends at the latest
_MOST = len(style.RUN_HUES) - 1


@sheet.course_style()
def plot_goodput(
    runs: Mapping[str, Reliability],
    *,
    played: Mapping[str, Mapping[float, float]] | None = None,
    reported: float | None = None,
    title: str = "How often to write a checkpoint",
) -> Picture:
    """A line for each run by its name, a ring where Daly's interval is; dashed what the first order says of the first.

    `played` has goodputs of runs that were played through, by interval, as marks of the same hue; `reported`
    is the least goodput that was said, drawn across. Units: seconds between checkpoints.
    Raises: ValueError for no run, or more than have hues.
    """
    if not 1 <= len(runs) <= _MOST:
        rule = f"this picture holds 1 to {_MOST} lines"
        raise ValueError(four_parts("plot_goodput", f"{len(runs)} runs", rule, "give fewer, or several pictures"))
    played = played or {}
    reach = _reach(runs, played)
    curves = [
        Line(name, hue, {tau: goodput(run, tau) for tau in _between(*reach)})
        for (name, run), hue in zip(runs.items(), style.RUN_HUES[1:], strict=False)
    ]
    subtitle = "ring: the best interval" + "; small marks: played with dice" * bool(played)
    figure, _ = sheet.new_page(_HEIGHT, title, subtitle)
    right = style.MARGIN + 0.4 + max(sheet.text_width(name, weight=600) for name in runs)
    width = style.PAGE_WIDTH - _LEFT - right
    chart = sheet.chart_axes(figure, _LEFT, style.HEADER + 0.42, width, _HEIGHT - style.HEADER - 1.35)
    _prepare(chart, reach, min(min(line.points.values()) for line in curves))
    _draw_first_order(chart, *next(iter(runs.items())), reach)
    for number, (line, run) in enumerate(zip(curves, runs.values(), strict=True)):
        lines.draw_line(chart, line)
        _draw_best(chart, line, run)
        if line.name in played:
            lines.draw_marks(chart, line._replace(points=played[line.name]), number + 2)
    if reported is not None:
        _draw_reported(chart, reported)
    lines.name_ends(chart, curves, least=0.09)
    kinds: list[Kind] = ["formula", "emulated"] if played else ["formula"]
    return Picture(figure, title=title, description=_in_words(runs, played), kinds=kinds)


def _reach(runs: Mapping[str, Reliability], played: Mapping[str, Mapping[float, float]]) -> tuple[float, float]:
    """The intervals that are drawn."""
    young = [young_interval_s(run) for run in runs.values()]
    also = [tau for points in played.values() for tau in points]
    return min([min(young) / 12, *also]), max([max(young) * 15, *also])


def _between(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (k / (_POINTS - 1)) for k in range(_POINTS)]


def _prepare(chart: Axes, reach: tuple[float, float], least: float) -> None:
    chart.set_xscale("log")
    chart.set_xlim(*reach)
    chart.xaxis.set_major_locator(FixedLocator([tick for tick in _TICKS if reach[0] <= tick <= reach[1]]))
    chart.xaxis.set_minor_locator(NullLocator())
    chart.xaxis.set_major_formatter(lambda tick, _: style.seconds(tick))
    chart.set_ylim(max(_FLOOR, min(0.9, least)), 1.0)
    chart.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    chart.tick_params(length=0, pad=6)
    chart.set_xlabel("training between two checkpoints, log scale", labelpad=8)
    charts.write(chart, 0, 1.06, "share of the time that trains", color=style.SOFT)
    charts.centre_on_ticks(chart)


def _draw_first_order(chart: Axes, name: str, run: Reliability, reach: tuple[float, float]) -> None:
    floor = chart.get_ylim()[0]
    points = {tau: first_order_goodput(run, tau) for tau in _between(*reach)}
    seen = {tau: share for tau, share in points.items() if share > floor}
    lines.draw_dashed(chart, seen, style.INK, zorder=3)
    look: dict[str, Any] = {"size": style.SMALL_SIZE, "ha": "right", "right": -8, "down": -8}
    charts.write(chart, *[*seen.items()][-1], f"{name}, by the sum", within="data", **look)


def _draw_reported(chart: Axes, share: float) -> None:
    """Dotted, and its words at its right end, on a ground that hides the curves."""
    chart.axhline(share, color=style.SOFT, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
    look: dict[str, Any] = {"size": style.SMALL_SIZE, "color": style.SOFT, "ha": "right"}
    charts.write(chart, chart.get_xlim()[1], share, f"reported: > {share:.0%}", within="data", down=-9, **look)


def _draw_best(chart: Axes, line: Line, run: Reliability) -> None:
    """A ring where the interval is best."""
    best = daly_interval_s(run)
    look: dict[str, Any] = {"markerfacecolor": style.PAPER, "markeredgecolor": line.hue, "markeredgewidth": 2.4}
    chart.plot(best, goodput(run, best), "o", markersize=9, zorder=4, **look)


def _in_words(runs: Mapping[str, Reliability], played: Mapping[str, Mapping[float, float]]) -> str:
    said = ["goodput at Daly's interval, at a quarter of it and at four times it"]
    for name, run in runs.items():
        best = daly_interval_s(run)
        at = ", ".join(f"{goodput(run, factor * best):.1%}" for factor in (1, 0.25, 4))
        said.append(f"  {name}: every {style.seconds(best)}: {at}; a failure every {style.seconds(run.mtbf_s)}")
        marks = ", ".join(f"{share:.1%} at {style.seconds(tau)}" for tau, share in played.get(name, {}).items())
        said += [f"    played: {marks}"] * bool(marks)
    return "\n".join(said)
