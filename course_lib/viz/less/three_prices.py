"""The same losses three times: against steps, against bytes, and against hours on a wire; and who arrives first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

from course_lib.costs.comm.less import Synchronisation
from course_lib.errors import four_parts
from course_lib.hardware import Link
from course_lib.less.run import steps_to
from course_lib.units import GB, format_bytes
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.lines import Line, draw_dashed, draw_line
from course_lib.viz.ink.picture import Picture

Losses = Mapping[str, Mapping[int, float]]  # by method, by step
_LEFT, _GAP = style.MARGIN + 0.55, 0.5
_TALL, _ROW = 2.5, 0.3  # inches: a chart, a line of the lists below
_WIDTH = (style.PAGE_WIDTH - style.MARGIN - _LEFT - 2 * _GAP) / 3
_HOUR_S = 3600.0


class _Price(NamedTuple):
    """What a step costs of each method, and how the axis below says it."""

    heading: str
    of_a_step: Mapping[str, float]
    logarithmic: bool

    def says(self, amount: float) -> str:
        if self.heading == "bytes":
            return f"{amount / GB:,.3g} GB"
        return f"{amount:,.0f}" if self.heading == "steps" else f"{amount:.2g} h"


@sheet.course_style()
def plot_three_prices(
    losses: Losses, prices: Mapping[str, Synchronisation], *, link: Link, computing_s: float, goal: float
) -> Picture:
    """Each method's loss, by step, over what it has cost until then; below, in which order they reach the goal.

    Units: a step computes for `computing_s` seconds, then synchronises on the link, and nothing overlaps.
    Raises: ValueError for no methods or too many, or one without its price or its losses.
    """
    _check(losses, prices)
    three = [
        _Price("steps", dict.fromkeys(losses, 1.0), False),
        _Price("bytes", {name: prices[name].bytes_a_step for name in losses}, True),
        _Price("hours", {name: _hours(prices[name], link, computing_s) for name in losses}, False),
    ]
    hues = dict(zip(losses, style.RUN_HUES, strict=False))
    title = "The same losses at three prices"
    subtitle = f"dashed: the goal, {goal:g}; hours on {link.name}, {style.seconds(computing_s)} of computing a step"
    top = style.HEADER + 0.42
    figure, page = sheet.new_page(top + _TALL + 1.3 + _ROW * len(losses), title, subtitle)
    marks.label(page, _LEFT, top - 0.24, "loss", colour=style.SOFT, align="left")
    order = {}
    for place, price in enumerate(three):
        left = _LEFT + place * (_WIDTH + _GAP)
        chart = sheet.chart_axes(figure, left, top, _WIDTH, _TALL)
        _draw_curves(chart, losses, price, hues, goal)
        chart.tick_params(labelleft=place == 0)
        order[price.heading] = _arrivals(losses, price, goal)
        _list(page, left, top + _TALL + 1.12, order[price.heading], price, hues)
    description = _in_words(order, three, subtitle)
    return Picture(figure, title=title, description=description, kinds=["measured", "formula"])


_Arrivals = list[tuple[str, float | None]]  # the first to reach the goal first; None: never


def _check(losses: Losses, prices: Mapping[str, Synchronisation]) -> None:
    if not 1 <= len(losses) <= len(style.RUN_HUES):
        rule = f"this picture holds 1 to {len(style.RUN_HUES)} methods"
        raise ValueError(four_parts("plot_three_prices", f"{len(losses)} methods", rule, "leave some out"))
    flat = [name for name, curve in losses.items() if not any(curve)]
    if flat:
        values, rule = f"no look at {', '.join(flat)} after its first step", "a curve has a price to stand over"
        raise ValueError(four_parts("plot_three_prices", values, rule, "give losses by step"))
    lacking = [name for name in losses if name not in prices]
    if lacking:
        values, rule = f"no price of {', '.join(lacking)}", "every method that is drawn has one"
        raise ValueError(four_parts("plot_three_prices", values, rule, "give a Synchronisation under its name"))


def _hours(price: Synchronisation, link: Link, computing_s: float) -> float:
    return (computing_s + price.seconds_a_step(link)) / _HOUR_S


def _arrivals(losses: Losses, price: _Price, goal: float) -> _Arrivals:
    found = {name: steps_to(curve, goal) for name, curve in losses.items()}
    paid = {name: None if steps is None else steps * price.of_a_step[name] for name, steps in found.items()}
    return sorted(paid.items(), key=lambda pair: math.inf if pair[1] is None else pair[1])


def _draw_curves(chart: Axes, losses: Losses, price: _Price, hues: Mapping[str, str], goal: float) -> None:
    """Each curve over its own price, as far as it went, and a dot where it meets the goal."""
    for name, curve in losses.items():
        points = {step * price.of_a_step[name]: loss for step, loss in curve.items() if step}
        draw_line(chart, Line(name, hues[name], points, 2.2))
    for name, paid in _arrivals(losses, price, goal):
        if paid is not None:
            look: dict[str, Any] = {"marker": "o", "markersize": 8, "markeredgecolor": style.PAPER, "zorder": 3}
            chart.plot(paid, goal, color=hues[name], **look)
    low, high = _along(losses, price, goal)
    if price.logarithmic:
        _bytes_axis(chart, low, high)
    else:
        chart.set_xlim(0, high)
        chart.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        chart.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    draw_dashed(chart, {chart.get_xlim()[0]: goal, chart.get_xlim()[1]: goal})
    chart.set_ylim(0.95 * min(goal, *(min(curve.values()) for curve in losses.values())), _highest(losses, goal))
    charts.centre_on_ticks(chart)
    chart.set_xlabel(price.heading, labelpad=6)
    chart.tick_params(length=0, pad=6)


def _highest(losses: Losses, goal: float) -> float:
    """A little above where most runs are after their first steps, so that one that jumps does not flatten the rest."""
    firsts = [next(loss for step, loss in curve.items() if step) for curve in losses.values()]
    return 1.1 * max(median(firsts), goal)


def _along(losses: Losses, price: _Price, goal: float) -> tuple[float, float]:
    """From the least that a first look has cost to a little more than what the last to arrive has paid."""
    first = min(price.of_a_step[name] * min(step for step in curve if step) for name, curve in losses.items())
    paid = [amount for _, amount in _arrivals(losses, price, goal) if amount is not None]
    ends = [price.of_a_step[name] * max(curve) for name, curve in losses.items()]
    return first, 1.25 * max(paid) if paid else max(ends)


def _bytes_axis(chart: Axes, low: float, high: float) -> None:
    chart.set_xscale("log")
    chart.set_xlim(low / 1.6, high)
    decades = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    every = max(1, math.ceil(len(decades) / 4))
    chart.xaxis.set_major_locator(FixedLocator([10.0**k for k in decades[::every]]))
    chart.xaxis.set_minor_locator(NullLocator())
    chart.xaxis.set_minor_formatter(NullFormatter())
    chart.xaxis.set_major_formatter(lambda value, _: format_bytes(value, binary=False))


def _list(page: Axes, left: float, top: float, arrivals: _Arrivals, price: _Price, hues: Mapping[str, str]) -> None:
    """Who reaches the goal first, and what it has paid then."""
    for place, (name, paid) in enumerate(arrivals):
        y = top + _ROW * place
        look: dict[str, Any] = {"size": style.SMALL_SIZE, "colour": hues[name]}
        marks.label(page, left, y, name, bold=True, align="left", **look)
        says = "never" if paid is None else price.says(paid)
        marks.label(page, left + _WIDTH, y, says, align="right", **look)


def _in_words(order: Mapping[str, _Arrivals], three: Sequence[_Price], subtitle: str) -> str:
    lines = [subtitle]
    for price in three:
        arrived = [f"{name} {'never' if paid is None else price.says(paid)}" for name, paid in order[price.heading]]
        lines.append(f"  {price.heading} to the goal: " + ", ".join(arrived))
    return "\n".join(lines)
