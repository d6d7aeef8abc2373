"""Measured speed against message size, and the alpha-beta line through the measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import floor, log2

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from course_lib.costs.comm.fit import Fit, SweepPoint
from course_lib.errors import four_parts
from course_lib.units import format_bytes
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.lines import algorithm_line, draw_line, name_ends
from course_lib.viz.ink.picture import Picture

_LEFT, _RIGHT, _HEIGHT = style.MARGIN + 1.0, 2.5, 5.625
_MARKERS = {"naive": "s", "ring": "o", "tree": "^", "recursive_doubling": "D", "halving_doubling": "v", "native": "X"}
_WIDTH = style.PAGE_WIDTH - _LEFT - _RIGHT
_Lines = dict[str, list[SweepPoint]]


@sheet.course_style()
def plot_bandwidth(sweep: Sequence[SweepPoint], *, title: str = "All-reduce: how fast for which size?") -> Picture:
    """Bytes of the tensor over measured seconds: a line for each own algorithm, PyTorch's own as crosses.

    Raises: ValueError for an empty sweep.
    """
    lines = _by_algorithm("plot_bandwidth", sweep)
    subtitle = f"measured on {_ranks(sweep)} ranks; bytes of the tensor per second; higher is better"
    figure, _ = sheet.new_page(_HEIGHT, title, subtitle)
    chart = sheet.chart_axes(figure, _LEFT, style.HEADER + 0.1, _WIDTH, _HEIGHT - style.HEADER - 1.05)
    speeds = {name: [point.nbytes / point.seconds for point in points] for name, points in lines.items()}
    charts.value_axis(chart, [speed for row in speeds.values() for speed in row], "bytes/s")
    charts.size_axis(chart, [point.nbytes for point in sweep])
    for name, points in lines.items():
        _draw_points(chart, name, [point.nbytes for point in points], speeds[name], joined=True)
    name_ends(chart, [algorithm_line(name, {0: row[-1]}) for name, row in speeds.items()], least=0.085)
    rows = [
        f"  {charts.algorithm_name(name)}: "
        + ", ".join(
            f"{format_bytes(point.nbytes / point.seconds, binary=False)}/s at {format_bytes(point.nbytes)}"
            for point in points
        )
        for name, points in lines.items()
    ]
    return Picture(
        figure, title=title, description="\n".join([f"measured on {_ranks(sweep)} ranks", *rows]), kinds=["measured"]
    )


@sheet.course_style()
def plot_fit(
    sweep: Sequence[SweepPoint],
    fit: Fit,
    *,
    title: str = "All-reduce: measured and predicted time",
    height: float = 7.15,
) -> Picture:
    """Measured points and the curve steps * alpha + bytes * beta, with what the curve misses below.

    PyTorch's own points stand beside the curves: the fit does not know them. `height` is in inches.
    Raises: ValueError for an empty sweep.
    """
    lines = _by_algorithm("plot_fit", sweep)
    tall = height - 4.05  # the chart's share of the page
    constants = (
        f"α = {style.seconds(fit.alpha_s)} per step,  β = {style.seconds(fit.beta_s_per_byte * 2**20)} per MiB"
        f" (1/β = {_rate(fit)});  fitted on {_ranks(sweep)} ranks"
    )
    figure, page = sheet.new_page(height, title, constants)
    top = style.HEADER + 0.42
    marks.label(page, _LEFT, top - 0.24, "time: points measured, curves predicted", colour=style.SOFT, align="left")
    chart = sheet.chart_axes(figure, _LEFT, top, _WIDTH, tall)
    own = {name: points for name, points in lines.items() if name != "native"}
    times = [point.seconds for point in sweep] + [_predicted(fit, p) for points in own.values() for p in points]
    charts.value_axis(chart, times, "seconds")
    charts.size_axis(chart, [point.nbytes for point in sweep], label="")
    chart.tick_params(labelbottom=False)
    for name, points in lines.items():
        sizes = [point.nbytes for point in points]
        _draw_points(chart, name, sizes, [point.seconds for point in points], joined=False)
        if name in own:
            draw_line(chart, algorithm_line(name, _curve(points, fit), width=2.2))
    ends = {name: _predicted(fit, points[-1]) if name in own else points[-1].seconds for name, points in lines.items()}
    name_ends(chart, [algorithm_line(name, {0: end}) for name, end in ends.items()], least=0.31 / tall)
    marks.label(page, _LEFT, top + tall + 0.35, "measured over predicted", colour=style.SOFT, align="left")
    rest = sheet.chart_axes(figure, _LEFT, top + tall + 0.55, _WIDTH, 1.05)
    _draw_residuals(rest, own, fit, [point.nbytes for point in sweep])
    return Picture(
        figure, title=title, description="\n".join([constants, *_fit_rows(lines, fit)]), kinds=["formula", "measured"]
    )


def _draw_points(chart: Axes, name: str, sizes: Sequence[int], values: Sequence[float], *, joined: bool) -> None:
    """One algorithm: filled markers, joined or not; PyTorch's own as crosses, never joined."""
    hue = style.ALGORITHM_HUES[name]
    chart.plot(
        sizes,
        values,
        color=hue,
        marker=_MARKERS.get(name, "o"),
        markersize=8,
        markerfacecolor=hue,
        markeredgecolor=style.PAPER,
        markeredgewidth=0.8,
        linestyle="-" if joined and name != "native" else "none",
        linewidth=2.2,
        zorder=3,
        clip_on=False,
    )


def _draw_residuals(chart: Axes, own: _Lines, fit: Fit, sizes: Sequence[int]) -> None:
    """Ratios around a line at 1, on a scale symmetric for twice and half."""
    ratios = {name: [p.seconds / _predicted(fit, p) for p in points] for name, points in own.items()}
    flat = [ratio for row in ratios.values() for ratio in row]
    reach = max(2.0, *flat, *(1 / ratio for ratio in flat)) * 1.15
    chart.set_yscale("log", base=2)
    chart.set_ylim(1 / reach, reach)
    outer = 2.0 ** floor(log2(reach))
    chart.yaxis.set_major_locator(FixedLocator([1 / outer, 1, outer]))
    chart.yaxis.set_minor_locator(NullLocator())
    chart.yaxis.set_minor_formatter(NullFormatter())
    chart.yaxis.set_major_formatter(lambda ratio, _: f"{ratio:g} ×")
    chart.tick_params(axis="y", length=0, pad=6)
    charts.centre_on_ticks(chart)
    chart.axhline(1, color=style.SOFT, linewidth=1.2, zorder=1)
    charts.size_axis(chart, sizes)
    for name, row in ratios.items():
        _draw_points(chart, name, [point.nbytes for point in own[name]], row, joined=False)


def _curve(points: Sequence[SweepPoint], fit: Fit) -> dict[float, float]:
    """Sizes and predicted times along one algorithm's line; its bytes grow in proportion to the tensor's."""
    first, last = points[0], points[-1]
    sizes = [first.nbytes * (last.nbytes / first.nbytes) ** (i / 100) for i in range(101)]
    return {size: fit.predict(last.steps, last.critical_bytes * size / last.nbytes) for size in sizes}


def _fit_rows(lines: _Lines, fit: Fit) -> list[str]:
    rows = []
    for name, points in lines.items():
        cells = []
        for point in points:
            text = f"{format_bytes(point.nbytes)} {style.seconds(point.seconds)}"
            predicted = "" if name == "native" else f" (predicted {style.seconds(_predicted(fit, point))})"
            cells.append(text + predicted)
        rows.append(f"  {charts.algorithm_name(name)}: " + ", ".join(cells))
    return rows


def _predicted(fit: Fit, point: SweepPoint) -> float:
    return fit.predict(point.steps, point.critical_bytes)


def _rate(fit: Fit) -> str:
    """Three digits: the fit is not better than that."""
    if not fit.beta_s_per_byte:
        return "unbounded"
    return format_bytes(float(f"{1 / fit.beta_s_per_byte:.3g}"), binary=False) + "/s"


def _ranks(sweep: Sequence[SweepPoint]) -> str:
    return ", ".join(map(str, sorted({point.world_size for point in sweep})))


def _by_algorithm(operation: str, sweep: Sequence[SweepPoint]) -> _Lines:
    """The points of each algorithm, from the smallest size to the largest."""
    if not sweep:
        raise ValueError(
            four_parts(
                operation,
                "sweep has 0 points",
                "a curve needs measurements",
                "measure with run_ranks(comm.sweep_all_reduce, world_size, sizes, algorithms)[0]",
            )
        )
    lines: _Lines = defaultdict(list)
    for point in sorted(sweep, key=lambda point: point.nbytes):
        lines[point.algorithm].append(point)
    return {name: lines[name] for name in style.ALGORITHM_HUES if name in lines}
