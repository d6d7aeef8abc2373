"""Seconds of one synchronisation by method, on wires from NVLink to a line between cities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from course_lib.costs.comm.less import Synchronisation
from course_lib.errors import four_parts
from course_lib.hardware import Link
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import LINE, draw_key, lines_of
from course_lib.viz.ink.picture import Picture

_ROW, _LEFT = 0.36, style.MARGIN
_HUES = style.RUN_HUES[1:]


@sheet.course_style()
def plot_wires(rows: Sequence[Synchronisation], links: Sequence[Link], *, computing_s: float) -> Picture:
    """A line for each method with a dot for each wire; a synchronisation is dear where it is right of the dashes.

    Units: seconds per step on a log scale; a step computes for `computing_s`.
    Raises: ValueError for nothing to draw, or more wires than there are hues.
    """
    if not rows or not 1 <= len(links) <= len(_HUES):
        values = f"{len(rows)} methods, {len(links)} wires"
        rule = f"a dot is a method on one of 1 to {len(_HUES)} wires"
        raise ValueError(four_parts("plot_wires", values, rule, "give rows of one_synchronisation, and links"))
    seconds = {row.method: [row.seconds_a_step(link) for link in links] for row in rows}
    title = "One synchronisation on four wires" if len(links) == 4 else "One synchronisation"
    subtitle = f"seconds per step; dashed: a step computes for {style.seconds(computing_s)}"
    entries = [Entry(link.name, [hue]) for link, hue in zip(links, _HUES, strict=False)]
    top = style.HEADER + 0.42 + LINE * (len(lines_of(entries, style.MARGIN)) - 1)
    height = _ROW * len(rows)
    figure, page = sheet.new_page(top + height + 0.9, title, subtitle)
    draw_key(page, entries, style.MARGIN)
    left = _LEFT + 0.32 + max(sheet.text_width(name) for name in seconds)
    chart = sheet.chart_axes(figure, left, top, style.PAGE_WIDTH - style.MARGIN - 0.2 - left, height)
    _axis(chart, [*(value for row in seconds.values() for value in row), computing_s], len(rows))
    chart.axvline(computing_s, color=style.SOFT, linewidth=1.5, linestyle=(0, (4, 3)), zorder=1)
    for place, (name, of_each) in enumerate(seconds.items()):
        marks.label(page, left - 0.22, top + _ROW * (place + 0.5), name, align="right")
        chart.plot([min(of_each), max(of_each)], [place, place], color=style.FAINT, linewidth=2, zorder=1)
        for value, hue in zip(of_each, _HUES, strict=False):
            look: dict[str, Any] = {"markersize": 10, "markeredgecolor": style.PAPER, "zorder": 3}
            chart.plot(value, place, marker="o", color=hue, **look)
    return Picture(figure, title=title, description=_in_words(seconds, links, subtitle), kinds=["formula"])


def _axis(chart: Axes, values: Sequence[float], rows: int) -> None:
    """Decades of seconds along the foot, and a row for each method, the first at the top."""
    chart.set_xscale("log")
    chart.set_xlim(min(values) / 1.8, max(values) * 1.8)
    low, high = math.ceil(math.log10(min(values) / 1.8)), math.floor(math.log10(max(values) * 1.8))
    chart.xaxis.set_major_locator(FixedLocator([10.0**k for k in range(low, high + 1)]))
    chart.xaxis.set_minor_locator(NullLocator())
    chart.xaxis.set_minor_formatter(NullFormatter())
    chart.xaxis.set_major_formatter(lambda value, _: _decade(value))
    chart.set_ylim(rows - 0.5, -0.5)
    chart.set_yticks([])
    chart.tick_params(length=0, pad=6)


def _decade(value: float) -> str:
    """A power of ten of seconds."""
    return style.seconds(value) if value < 60 else f"{value:,.0f} s"


def _in_words(seconds: Mapping[str, Sequence[float]], links: Sequence[Link], subtitle: str) -> str:
    lines = [f"{subtitle}; on {', '.join(link.name for link in links)}"]
    lines += [f"  {name}: {', '.join(style.seconds(value) for value in row)}" for name, row in seconds.items()]
    return "\n".join(lines)
