"""Gradients in a low precision: what rounding does to each on one device, and how far off the ranks are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from course_lib.errors import four_parts
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.lines import draw_dashed
from course_lib.viz.ink.picture import Picture

_LEFT, _RIGHT, _TALL = style.MARGIN + 0.95, 2.7, 3.6  # inches: numbers up the side, names, the chart
_LEAST = 1e-9  # where no deviation at all is drawn


class Deviations(Protocol):
    """One parameter: how far its gradient is off on one device, and on ranks."""

    @property
    def name(self) -> str: ...
    @property
    def alone(self) -> float: ...
    @property
    def ranks(self) -> float: ...
    @property
    def is_sound(self) -> bool: ...


@sheet.course_style()
def plot_rounding(runs: Mapping[str, Sequence[Deviations]], *, sound: float, title: str = "") -> Picture:
    """A dot for each parameter of each run, on log axes; above the dashed line rounding does not explain it.

    `sound` says by which factor ranks may be further off than one device.
    Raises: ValueError for no runs or more than there are hues.
    """
    if not 1 <= len(runs) < len(style.RUN_HUES) or not all(runs.values()):
        values, rule = f"{len(runs)} runs", f"this picture holds 1 to {len(style.RUN_HUES) - 1}, each with parameters"
        raise ValueError(four_parts("plot_rounding", values, rule, "give fewer runs"))
    title = title or "Does rounding explain each gradient's error?"
    subtitle = "a dot is a parameter: its gradient's largest error, as a share of its largest number; log scales"
    top = style.HEADER + 0.42
    figure, page = sheet.new_page(top + _TALL + 0.85, title, subtitle)
    marks.label(page, _LEFT, top - 0.24, "error on ranks", colour=style.SOFT, align="left")
    chart = sheet.chart_axes(figure, _LEFT, top, style.PAGE_WIDTH - _LEFT - _RIGHT, _TALL)
    every = [max(value, _LEAST) for rows in runs.values() for row in rows for value in (row.alone, row.ranks)]
    low, high = min(every) / 1.6, max(every) * 1.6
    charts.number_axis(chart, [low, high], most=5)
    _across(chart, [row.alone for rows in runs.values() for row in rows])
    ends = chart.get_xlim()
    draw_dashed(chart, {x: sound * x for x in ends}, zorder=2)
    for number, ((name, rows), hue) in enumerate(zip(runs.items(), style.RUN_HUES[1:], strict=False)):
        places = [max(row.alone, _LEAST) for row in rows], [max(row.ranks, _LEAST) for row in rows]
        size = 12 - 3 * number  # later ones are smaller, so that those beneath are seen
        chart.plot(*places, "o", color=hue, markersize=size, markeredgecolor=style.PAPER, markeredgewidth=1, zorder=3)
        bad = sum(not row.is_sound for row in rows)
        words = "all explained" if not bad else f"{bad} of {len(rows)} not explained"
        at = 0.97 - 0.19 * number
        charts.write(chart, 1.05, at, name, color=hue, weight=600)
        charts.write(chart, 1.05, at - 0.075, words, color=style.SOFT, size=style.SMALL_SIZE)
    charts.write(chart, 1.05, 0.075, f"dashed: {sound:g} times the", color=style.SOFT, size=style.SMALL_SIZE)
    charts.write(chart, 1.05, 0.0, "error on one device", color=style.SOFT, size=style.SMALL_SIZE)
    return Picture(figure, title=title, description=_in_words(runs, subtitle), kinds=["measured"])


def _across(chart: Axes, values: Sequence[float]) -> None:
    """Decades along the foot."""
    chart.set_xscale("log")
    low, high = max(min(values), _LEAST) / 1.6, max(values) * 1.6
    chart.set_xlim(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if high / low > 100 else (1, 2, 5)
    ticks = [factor * 10.0**k for k in decades for factor in factors]
    chart.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    chart.xaxis.set_minor_locator(NullLocator())
    chart.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    chart.tick_params(axis="x", length=0, pad=6)
    chart.set_xlabel("error on one device, by rounding alone", labelpad=6)


def _in_words(runs: Mapping[str, Sequence[Deviations]], subtitle: str) -> str:
    lines = [subtitle]
    for name, rows in runs.items():
        worst = max(rows, key=lambda row: row.ranks / max(row.alone, _LEAST))
        ratio = worst.ranks / max(worst.alone, _LEAST)
        bad = [row.name for row in rows if not row.is_sound]
        said = f"not explained: {', '.join(bad)}" if bad else "all explained"
        lines.append(f"  {name}: {said}; the worst is {worst.name}, {ratio:.2g} times as far off as one device")
    return "\n".join(lines)
