"""A step's time by causes: one bar for each policy, from compute over messages to waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from course_lib.errors import four_parts
from course_lib.planner.reasons import Ranked
from course_lib.sim.step import CAUSE_NAMES
from course_lib.viz.ink import charts, keys, marks, sheet, style
from course_lib.viz.ink.cause_hues import CAUSE_GROUPS, CAUSE_HUES
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.picture import Picture

_SEEN = 0.004  # of a step: what is worth words, or a colour in the key
_FAR = 0.1  # of the fastest step: from here on a decimal says nothing
_STEP, _BAR = 0.98, 0.46  # inches from bar to bar, and of one
_LEFT, _RIGHT, _MOST = style.MARGIN + 0.06, 1.45, 6
_PAD = 0.16  # inches around a name in its block


@sheet.course_style()
def plot_step_causes(policies: Sequence[Ranked], *, title: str = "Where a step's time goes") -> Picture:
    """A stacked bar for each policy, as long as its step; a group of causes has the same colour in all of them.

    Beside each stands how much longer it is than the shortest.

    Units: seconds.
    Raises: ValueError for no policy, or more than a page holds.
    """
    if not 1 <= len(policies) <= _MOST:
        rule = f"this picture holds 1 to {_MOST} bars"
        raise ValueError(four_parts("plot_step_causes", f"{len(policies)} policies", rule, "give fewer, or some"))
    fastest, longest = (end(one.step_s for one in policies) for end in (min, max))
    groups = [name for name in CAUSE_GROUPS if any(_seconds(one, name) > _SEEN * longest for one in policies)]
    entries = [Entry(name, [CAUSE_GROUPS[name][0]]) for name in groups]
    top = style.HEADER + 0.2 + keys.LINE * len(keys.lines_of(entries, style.MARGIN))
    tall = _STEP * len(policies)
    figure, page = sheet.new_page(top + tall + 0.85, title, "one bar = one step of one layout")
    keys.draw_key(page, entries, style.MARGIN)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    chart = sheet.chart_axes(figure, _LEFT, top, width, tall)
    _prepare(chart, len(policies), longest)
    for number, one in enumerate(policies):
        _draw_bar(chart, number, one, width / chart.get_xlim()[1])
        y = top + number * _STEP
        charts.write(chart, 0, number + 0.28, one.name, within="data", size=style.SMALL_SIZE)
        behind = _behind(one.step_s / fastest - 1)
        x = style.PAGE_WIDTH - _RIGHT + 0.15
        marks.label(page, x, y + 0.56, style.seconds(one.step_s), bold=True, align="left")
        marks.label(page, x, y + 0.8, behind, size=style.SMALL_SIZE, colour=style.SOFT, align="left")
    return Picture(figure, title=title, description=_in_words(policies), kinds=["formula"])


def _behind(share: float) -> str:
    return f"{share:+.{int(share < _FAR)}%}" if share else "fastest"


def _seconds(one: Ranked, group: str) -> float:
    """What a group's causes take together."""
    return sum(one.causes_s[cause] for cause in CAUSE_GROUPS[group][1])


def _prepare(chart: Axes, bars: int, longest: float) -> None:
    chart.set(xlim=(0, 1.02 * longest), ylim=(bars, 0), yticks=[])
    chart.spines[:].set_visible(False)
    chart.tick_params(length=0, pad=6)
    chart.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    chart.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    chart.set_xlabel("seconds", labelpad=6)


def _draw_bar(chart: Axes, number: int, one: Ranked, inch: float) -> None:
    """Each group behind the one before it; its name is written where it has room. `inch` is of a second."""
    left, top = 0.0, number + 0.44
    for name, (hue, _) in CAUSE_GROUPS.items():
        seconds = _seconds(one, name)
        look: dict[str, Any] = {"facecolor": hue, "edgecolor": style.PAPER, "linewidth": 0.6, "zorder": 2}
        chart.add_patch(Rectangle((left, top), seconds, _BAR / _STEP, **look))
        if seconds * inch > sheet.text_width(name, style.SMALL_SIZE) + _PAD:
            middle, ink = (left + seconds / 2, top + _BAR / _STEP / 2), style.text_on(hue)
            charts.write(chart, *middle, name, within="data", size=style.SMALL_SIZE, ha="center", color=ink)
        left += seconds


def _in_words(policies: Sequence[Ranked]) -> str:
    lines = ["each layout's step, and its causes"]
    for one in policies:
        seen = [cause for cause in CAUSE_HUES if one.causes_s[cause] > _SEEN * one.step_s]
        parts = ", ".join(f"{CAUSE_NAMES[cause]} {style.seconds(one.causes_s[cause])}" for cause in seen)
        lines.append(f"  {one.name}: {style.seconds(one.step_s)}; {parts}")
    return "\n".join(lines)
