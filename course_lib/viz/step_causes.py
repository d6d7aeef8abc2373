"""A step's time by causes: one bar for each policy, from compute over messages to waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_lib.errors import four_parts
from course_lib.planner.reasons import CAUSE_NAMES, Ranked
from course_lib.viz import charts, keys, marks, sheet, style
from course_lib.viz.cause_hues import CAUSE_HUES
from course_lib.viz.entries import Entry
from course_lib.viz.picture import Picture

_SEEN = 0.004  # of the longest step: what has a colour in the key
_STEP, _BAR = 0.98, 0.46  # inches from bar to bar, and of one
_LEFT, _RIGHT, _MOST = style.MARGIN + 0.06, 1.75, 6


@sheet.course_style()
def plot_step_causes(policies: Sequence[Ranked], *, title: str = "Where a step's time goes") -> Picture:
    """A stacked bar for each policy, as long as its step; a cause has the same colour in all of them.

    Units: seconds.
    Raises: ValueError for no policy, or more than a page holds.
    """
    if not 1 <= len(policies) <= _MOST:
        rule = f"this picture holds 1 to {_MOST} bars"
        raise ValueError(four_parts("plot_step_causes", f"{len(policies)} policies", rule, "give fewer, or some"))
    longest = max(one.step_s for one in policies)
    causes = [cause for cause in CAUSE_HUES if any(one.causes_s[cause] > _SEEN * longest for one in policies)]
    entries = [Entry(CAUSE_NAMES[cause], [CAUSE_HUES[cause]]) for cause in causes]
    top = style.HEADER + 0.2 + keys.LINE * len(keys.lines_of(entries, style.MARGIN))
    tall = _STEP * len(policies)
    figure, page = sheet.new_page(top + tall + 0.85, title, "one bar = one step of one policy, by the closed form")
    keys.draw_key(page, entries, style.MARGIN)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    chart = sheet.chart_axes(figure, _LEFT, top, width, tall)
    _prepare(chart, len(policies), longest)
    for number, one in enumerate(policies):
        _draw_bar(chart, number, one)
        y = top + number * _STEP
        charts.write(chart, 0, number + 0.28, one.name, within="data", size=style.SMALL_SIZE)
        behind = f"{one.step_s / policies[0].step_s - 1:+.1%}" if number else "the first"
        x = style.PAGE_WIDTH - _RIGHT + 0.15
        marks.label(page, x, y + 0.56, style.seconds(one.step_s), bold=True, align="left")
        marks.label(page, x, y + 0.8, behind, size=style.SMALL_SIZE, colour=style.SOFT, align="left")
    return Picture(figure, title=title, description=_in_words(policies, causes), kinds=["formula"])


def _prepare(chart: Axes, bars: int, longest: float) -> None:
    chart.set(xlim=(0, 1.01 * longest), ylim=(bars, 0), yticks=[])
    chart.spines[:].set_visible(False)
    chart.tick_params(length=0, pad=6)
    chart.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    chart.set_xlabel("seconds", labelpad=6)


def _draw_bar(chart: Axes, number: int, one: Ranked) -> None:
    """Each cause behind the one before it."""
    left, top = 0.0, number + 0.44
    for cause, hue in CAUSE_HUES.items():
        seconds = one.causes_s[cause]
        look: dict[str, Any] = {"facecolor": hue, "edgecolor": style.PAPER, "linewidth": 0.6, "zorder": 2}
        chart.add_patch(Rectangle((left, top), seconds, _BAR / _STEP, **look))
        left += seconds


def _in_words(policies: Sequence[Ranked], causes: Sequence[str]) -> str:
    lines = ["each policy's step, and its causes"]
    for one in policies:
        parts = ", ".join(f"{CAUSE_NAMES[cause]} {style.seconds(one.causes_s[cause])}" for cause in causes)
        lines.append(f"  {one.name}: {style.seconds(one.step_s)}; {parts}")
    return "\n".join(lines)
