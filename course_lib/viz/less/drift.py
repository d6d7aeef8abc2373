"""Two workers in two bowls: the way of each between two averages, and where their mean comes to rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Ellipse

from course_lib.errors import four_parts
from course_lib.less.two_bowls import CURVATURES, MIDDLES, OPTIMUM, Drift
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture

_MOST = 3
_GAP, _TOP = 0.3, style.HEADER + 0.5
_LEVELS = (0.03, 0.15, 0.4)  # of a bowl, at which it has a ring
_ACROSS, _UP = (-2.1, 1.75), (-0.75, 2.05)  # what is seen of the plane


@sheet.course_style()
def plot_drift(drifts: Sequence[Drift]) -> Picture:
    """A panel for each: both workers' ways in their hues, their means black, and the optimum of both a ring.

    Raises: ValueError for none or more than three.
    """
    if not 1 <= len(drifts) <= _MOST:
        rule = f"this picture holds 1 to {_MOST} panels"
        raise ValueError(four_parts("plot_drift", f"{len(drifts)} drifts", rule, "give drift(H, steps=...) of each H"))
    wide = (style.PAGE_WIDTH - 2 * style.MARGIN - _GAP * (_MOST - 1)) / _MOST
    tall = wide * (_UP[1] - _UP[0]) / (_ACROSS[1] - _ACROSS[0])
    title = "Two workers, each in its own bowl"
    subtitle = "dots: their mean after every H steps; ring: the optimum of both"
    figure, page = sheet.new_page(_TOP + tall + 0.85, title, subtitle)
    for place, one in enumerate(drifts):
        left = style.MARGIN + place * (wide + _GAP)
        marks.label(page, left, _TOP - 0.2, f"H = {one.every}", bold=True, align="left")
        chart = sheet.chart_axes(figure, left, _TOP, wide, tall)
        _draw_bowls(chart)
        _draw_ways(chart, one)
        marks.label(page, left, _TOP + tall + 0.3, f"ends {one.off:.1g} from the optimum", align="left")
    lines = [f"  H = {one.every}: ends {one.off:.1g} from the optimum" for one in drifts]
    return Picture(figure, title=title, description="\n".join([subtitle, *lines]), kinds=["measured"])


def _draw_bowls(chart: Axes) -> None:
    """Lines of equal height round each bowl's middle."""
    chart.set(xlim=_ACROSS, ylim=_UP, xticks=[], yticks=[])
    chart.grid(False)
    chart.spines[:].set_visible(False)
    for rank, (middle, curvature) in enumerate(zip(MIDDLES.tolist(), CURVATURES.tolist(), strict=True)):
        hue = style.rank_hue(rank)
        for level in _LEVELS:
            across, up = (2 * (2 * level / h) ** 0.5 for h in curvature)
            look: dict[str, Any] = {"facecolor": "none", "edgecolor": style.tint(hue, 0.35), "linewidth": 1.2}
            chart.add_patch(Ellipse(middle, across, up, zorder=1, **look))
        chart.plot(*middle, marker="+", markersize=10, markeredgewidth=2, color=hue, zorder=2)


def _draw_ways(chart: Axes, one: Drift) -> None:
    for rank, path in enumerate(one.paths):
        chart.plot(*zip(*path, strict=True), color=style.rank_hue(rank), linewidth=1.6, zorder=3)
    shown = one.means[:: max(1, len(one.means) // 24)]
    chart.plot(*zip(*shown, strict=True), marker="o", markersize=5, linestyle="none", color=style.INK, zorder=4)
    look: dict[str, Any] = {"markersize": 15, "markerfacecolor": "none", "markeredgecolor": style.WRONG}
    chart.plot(*OPTIMUM.tolist(), marker="o", markeredgewidth=2, zorder=5, **look)
