"""The bubble, as a part of a pipeline's step, against the number of micro-batches, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from course_lib.viz.ink import sheet
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.picture import Picture
from course_lib.viz.ink.shares import Chart, Shares


def _axis(largest: float) -> tuple[float, list[float]]:
    """From 0 to above the largest share, in steps of 10 or 20 percent."""
    step = 0.2 if largest > 0.5 else 0.1
    steps = max(1, ceil(round(largest / step, 9)))
    return step * steps * 1.03, [step * number for number in range(steps + 1)]


_CHART = Chart(
    operation="plot_idle",
    counts="micro-batches m",
    legal=lambda share: 0 <= share < 1,
    refusal="share {share} with {count} micro-batches",
    rule="it is a part of the step, at least 0, below 1",
    way_out="give bubble / length of the step",
    says="{share:.1%} with m = {count}",
    axis=_axis,
)


@sheet.course_style()
def plot_idle(
    predicted: Mapping[str, Shares],
    measured: Mapping[str, Shares] | None = None,
    *,
    marks: Kind = "measured",
    title: str = "More micro-batches, less bubble",
    subtitle: str = "",
) -> Picture:
    """A line for each name in `predicted`, marks of the same hue for what was `measured`; both map m to a share.

    `marks` says of which kind those are: of real time, or of the emulated clock.
    Raises: ValueError for nothing to draw, too many lines, or shares that are not from 0 to 1.
    """
    subtitle = subtitle or f"bubble, as a part of the step; lines: predicted; marks: {marks}"
    return _CHART.draw(predicted, measured or {}, marks, title, subtitle)
