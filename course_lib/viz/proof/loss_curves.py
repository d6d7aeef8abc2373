"""Losses of several runs on one axis, and below them what the losses hide: the norms of the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from course_lib.errors import four_parts
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.lines import Line, draw_line, name_ends
from course_lib.viz.ink.picture import Picture

Curves = Mapping[str, Sequence[float]]
_LEFT = style.MARGIN + 0.72
_BROAD, _LINE = 11.0, 2.4  # points: the reference, every other run
_LEAST = 1e-7  # what rounding in float32 makes of a loss
_LOSS, _NORM = 2.6, 1.45  # inches: the two panels
_ALIKE = 0.02  # of a panel's height: runs that end nearer are as good as equal, and which is lower says nothing
_START = 0.13  # of the steps' width, left free for the multiples
_BESIDE = 1.045  # a name begins so many widths of the chart from its left


@sheet.course_style()
def plot_loss_curves(
    curves: Curves,
    norms: Curves | None = None,
    *,
    title: str = "The loss of every run",
    subtitle: str = "",
    hues: Mapping[str, str] | None = None,
) -> Picture:
    """A line for each run, one value per step; the first run is the reference, drawn broad beneath the others.

    `hues` are for runs that are not those of a neighbouring picture, whose hues they would have by their place.
    `norms` adds a panel with the gradient norms on a log scale. Left of where a line begins stands its multiple
    of the reference's at this first step, where all runs still have the same weights.
    Raises: ValueError for no runs or too many, a run without a finite value, or norms of other runs than the curves.
    """
    _check(curves, norms)
    hues = dict(zip(curves, style.RUN_HUES, strict=False)) | dict(hues or {})
    reference = next(iter(curves))
    subtitle = subtitle or (f"the broad grey line is {reference}" if len(curves) > 1 else "")
    top = style.HEADER + 0.42
    height = top + _LOSS + (0.68 + _NORM if norms else 0) + 0.85
    figure, page = sheet.new_page(height, title, subtitle)
    marks.label(page, _LEFT, top - 0.24, "loss", colour=style.SOFT, align="left")
    width = _width(curves)
    chart = sheet.chart_axes(figure, _LEFT, top, width, _LOSS)
    _draw(chart, curves, hues)
    chart.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    _name(chart, curves, hues, least=0.3 / _LOSS)
    if norms:
        chart.tick_params(labelbottom=False)
        below = top + _LOSS + 0.68
        heading = f"gradient norm, log scale; × = times that of {next(iter(norms))}, at step 1"
        marks.label(page, _LEFT, below - 0.24, heading, colour=style.SOFT, align="left")
        panel = sheet.chart_axes(figure, _LEFT, below, width, _NORM)
        _draw(panel, norms, hues)
        charts.number_axis(panel, [v for values in norms.values() for v in values if 0 < v < math.inf], most=5)
        _name(panel, norms, hues, least=0.3 / _NORM)
        _write_multiples(panel, norms, hues)
        _leave_room(chart, panel)
    figure.axes[-1].set_xlabel("step", labelpad=6)
    return Picture(figure, title=title, description=_in_words(curves, norms or {}), kinds=["measured"])


@sheet.course_style()
def plot_loss_differences(curves: Curves, *, beside: str = "", title: str = "") -> Picture:
    """For each further run how far its loss is from the first one's in the same step, on a log scale.

    `beside` names the run by which the others are judged: it is drawn broad and grey beneath them.
    Raises: ValueError for fewer than two runs or too many, one without a finite value, or a `beside` that is none.
    """
    _check(curves, None, most=len(style.RUN_HUES) + 1)
    reference, *others = curves
    if not others:
        found, rule = "1 curve", "each run is compared with the first"
        raise ValueError(four_parts("plot_loss_differences", found, rule, "give the reference and other runs"))
    if beside and beside not in others:
        found, rule = f"beside {beside!r}", f"the runs compared are {', '.join(others)}"
        raise ValueError(four_parts("plot_loss_differences", found, rule, "name one of them"))
    coloured = [name for name in others if name != beside]
    hues = dict(zip(coloured, (*style.RUN_HUES[1:], style.INK), strict=False))  # the reference's is not drawn here
    hues |= {beside: style.RUN_HUES[0]} if beside else {}
    apart = {name: [abs(a - b) for a, b in zip(curves[name], curves[reference], strict=True)] for name in others}
    drawn = {name: [max(value, _LEAST) for value in values] for name, values in apart.items()}
    top, title = style.HEADER + 0.42, title or f"How far each run's loss is from that of {reference}"
    subtitle = f"in the same step; log scale; what is below {_LEAST:g} is drawn at {_LEAST:g}"
    figure, page = sheet.new_page(top + _LOSS + 0.85, title, subtitle)
    marks.label(page, _LEFT, top - 0.24, "difference of the losses", colour=style.SOFT, align="left")
    chart = sheet.chart_axes(figure, _LEFT, top, _width(drawn), _LOSS)
    if beside:
        _draw_broad(chart, beside, drawn[beside], hues)
    _draw_runs(chart, {name: drawn[name] for name in coloured}, hues)
    _finish(chart, drawn)
    charts.number_axis(chart, [v for values in drawn.values() for v in values if v < math.inf], most=5)
    _name(chart, drawn, hues, least=0.3 / _LOSS)
    chart.set_xlabel("step", labelpad=6)
    lines = [f"  {name}: at most {max(v):.1g}, {v[-1]:.1g} at the last step" for name, v in apart.items()]
    return Picture(figure, title=title, description="\n".join([subtitle, *lines]), kinds=["measured"])


def _width(names: Iterable[str]) -> float:
    """Inches of a chart that leaves room for the names at its right, and no more."""
    longest = max(sheet.text_width(name, weight=600) for name in names)
    return (style.PAGE_WIDTH - _LEFT - style.MARGIN - longest) / _BESIDE


def _check(curves: Curves, norms: Curves | None, most: int = len(style.RUN_HUES)) -> None:
    if not 1 <= len(curves) <= most:
        values, rule = f"{len(curves)} curves", f"this picture holds 1 to {most}"
        raise ValueError(four_parts("plot_loss_curves", values, rule, "leave some out, or draw two pictures"))
    strangers = sorted(set(norms or {}) - set(curves))
    if strangers:
        values, rule = f"norms of {', '.join(strangers)}", f"the curves are {', '.join(curves)}"
        raise ValueError(four_parts("plot_loss_curves", values, rule, "give norms of the runs that are drawn"))
    for name, curve in (*curves.items(), *(norms or {}).items()):
        if not any(map(math.isfinite, curve)):
            found, rule = f"{name!r} has {len(curve)} values, none of them finite", "a line needs one"
            raise ValueError(four_parts("plot_loss_curves", found, rule, "leave it out"))
    if norms and not next(iter(norms.values()))[0] > 0:
        found, rule = f"{next(iter(norms))!r} begins with a norm that is not positive", "the others are multiples of it"
        raise ValueError(four_parts("plot_loss_curves", found, rule, "give the norms before clipping, from step 1 on"))


def _draw(chart: Axes, curves: Curves, hues: Mapping[str, str]) -> None:
    """The reference broad and grey, the runs on top and all alike, so that no width seems to mean something."""
    reference, *runs = curves
    if runs:
        _draw_broad(chart, reference, curves[reference], hues)
    _draw_runs(chart, {name: curves[name] for name in runs or [reference]}, hues)
    _finish(chart, curves)


def _draw_broad(chart: Axes, name: str, values: Sequence[float], hues: Mapping[str, str]) -> None:
    draw_line(chart, Line(name, style.tint(hues[name], 0.35), dict(enumerate(values, 1)), _BROAD))


def _draw_runs(chart: Axes, curves: Curves, hues: Mapping[str, str]) -> None:
    """Each later one has wider gaps, so that lines upon each other are all seen."""
    for number, (name, values) in enumerate(curves.items()):
        draw_line(chart, Line(name, hues[name], dict(enumerate(values, 1)), _LINE, 1 - number / len(curves)))


def _finish(chart: Axes, curves: Curves) -> None:
    """The steps along the foot, the first of them named."""
    last = max(2, *(len(values) for values in curves.values()))
    chart.set_xlim(1, last)
    steps = MaxNLocator(8, integer=True).tick_values(1, last)
    chart.xaxis.set_major_locator(FixedLocator([1, *(step for step in steps if 1 < step <= last)]))
    chart.tick_params(length=0, pad=6)
    charts.centre_on_ticks(chart)


def _name(chart: Axes, curves: Curves, hues: Mapping[str, str], least: float) -> None:
    """Each run's name at the height of its last finite value, within the chart; of equal runs, in their order."""
    named = [Line(name, hues[name], dict(enumerate(values))) for name, values in curves.items()]
    name_ends(chart, named, least=least, alike=_ALIKE)


def _write_multiples(panel: Axes, norms: Curves, hues: Mapping[str, str]) -> None:
    """Left of the first point of each run that begins elsewhere than the reference."""
    for name, values in norms.items():
        multiple = _multiple(norms, name)
        if multiple not in ("", "1 ×") and math.isfinite(values[0]):
            look: dict[str, Any] = {"color": hues[name], "weight": 600, "ha": "right"}
            charts.write(panel, 1, values[0], multiple, within="data", right=-8, **look)


def _leave_room(*panels: Axes) -> None:
    """For the multiples: the first step stands a little off the side."""
    for chart in panels:
        last = chart.get_xlim()[1]
        chart.set_xlim(1 - _START * (last - 1), last)


def _multiple(norms: Curves, name: str) -> str:
    """How many times the reference's norm at the first step; nothing for the reference itself."""
    reference = next(iter(norms))
    return "" if name == reference else f"{norms[name][0] / norms[reference][0]:.3g} ×"


def _in_words(curves: Curves, norms: Curves) -> str:
    lines = []
    for name, values in curves.items():
        line = f"  {name}: loss {values[0]:.4g} at step 1, {values[-1]:.4g} at step {len(values)}"
        if name in norms:
            multiple = _multiple(norms, name)
            line += f"; gradient norm {norms[name][0]:.3g} at step 1" + (
                f", {multiple} the reference's" * bool(multiple)
            )
        lines.append(line)
    return "\n".join(lines)
