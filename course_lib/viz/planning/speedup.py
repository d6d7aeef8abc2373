"""Parallel SGD's linear speed-up: the error that N workers reach in T steps, against the theorem's slope."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.viz.ink import charts, sheet, style
from course_lib.viz.ink.lines import Line, draw_dashed, draw_line, name_ends
from course_lib.viz.ink.picture import Picture

_LEFT, _RIGHT, _HEIGHT = style.MARGIN + 0.8, 2.2, 5.625
_SHADES = (0.68, 0.84, 1.0)  # more steps, darker
_HUE = style.RUN_HUES[1]
Errors = Mapping[int, Mapping[int, float]]  # steps -> workers -> mean squared gradient


@sheet.course_style()
def plot_speedup(errors: Errors, transients: Mapping[int, int]) -> Picture:
    """The error of each T steps of N workers; both axes are logarithmic.

    `transients` says for each N how many steps the transient has. Points are filled where T is past it, and open where
    it is not: there the stepsize is capped, and more workers help less than the theorem's slope of -1/2, which is
    dashed.
    Raises: ValueError for other than 1 to 3 numbers of steps, a T without errors, or an N without its transient.
    """
    _check(errors, transients)
    errors = {t: dict(sorted(line.items())) for t, line in sorted(errors.items())}
    title = "Parallel SGD: what more workers buy"
    subtitle = "dashed: slope −1/2; open circles: too few steps for the theorem"
    figure, _ = sheet.new_page(_HEIGHT, title, subtitle)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    chart = sheet.chart_axes(figure, _LEFT, style.HEADER + 0.42, width, _HEIGHT - style.HEADER - 1.36)
    _prepare(chart, errors)
    names = []
    for (t, line), shade in zip(errors.items(), _SHADES[-len(errors) :], strict=True):
        hue = style.tint(_HUE, shade)
        names.append(Line(f"T = {t:,} steps", hue, line, 2.2))
        _draw_line(chart, names[-1], [t >= transients[n] for n in line])
    name_ends(chart, names, least=0.09)
    return Picture(figure, title=title, description=_in_words(errors, transients), kinds=["measured"])


def _check(errors: Errors, transients: Mapping[int, int]) -> None:
    if not 1 <= len(errors) <= len(_SHADES):
        rule = f"this picture holds 1 to {len(_SHADES)} lines"
        raise ValueError(four_parts("plot_speedup", f"{len(errors)} numbers of steps", rule, "give fewer"))
    for t, line in errors.items():
        lacking = sorted(set(line) - set(transients))
        if lacking or not line:
            values = f"T = {t} with N = {', '.join(map(str, line)) or 'none'}"
            rule = "each line has points, and each N a transient"
            raise ValueError(four_parts("plot_speedup", values, rule, "give transients for every N that is drawn"))


def _prepare(chart: Axes, errors: Errors) -> None:
    charts.count_axis(chart, [n for line in errors.values() for n in line], "workers N")
    flat = [error for line in errors.values() for error in line.values()]
    charts.number_axis(chart, flat, most=8)
    charts.write(chart, 0, 1.075, "error: mean squared gradient over the T steps", color=style.SOFT)


def _draw_line(chart: Axes, line: Line, past: list[bool]) -> None:
    """What was reached, and from its first point the theorem's slope."""
    first = min(line.points)
    draw_dashed(chart, {n: line.points[first] * (first / n) ** 0.5 for n in line.points})
    draw_line(chart, line)
    for (n, error), filled in zip(line.points.items(), past, strict=True):
        chart.plot(
            n,
            error,
            marker="o",
            markersize=9,
            color=line.hue,
            markerfacecolor=line.hue if filled else style.PAPER,
            markeredgewidth=2,
            zorder=3,
            clip_on=False,
        )


def _in_words(errors: Errors, transients: Mapping[int, int]) -> str:
    """Every error, and where the transient ends."""
    lines = ["mean squared gradient over T steps of N workers; past the transient it falls as 1/sqrt(N)"]
    for t, line in errors.items():
        cells = [
            f"{error:.3g} with {n}{'' if t >= transients[n] else ' (within the transient)'}"
            for n, error in line.items()
        ]
        lines.append(f"  T = {t:,}: " + ", ".join(cells))
    return "\n".join(lines)
