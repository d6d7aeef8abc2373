"""How much of each further GPU arrives: scaling efficiency against the number of GPUs, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.viz.ink import sheet
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.picture import Picture
from course_lib.viz.ink.shares import Chart, Shares

_CHART = Chart(
    operation="plot_scaling",
    counts="GPUs",
    legal=lambda share: share > 0,
    refusal="efficiency {share} on {count} GPUs",
    rule="both are positive",
    way_out="give time on one GPU / time on n GPUs",
    says="{share:.1%} on {count:,}",
    axis=lambda largest: (max(1.0, largest) * 1.05, [0, 0.25, 0.5, 0.75, 1.0]),
    ideal=True,
)


@sheet.course_style()
def plot_scaling(
    predicted: Mapping[str, Shares],
    measured: Mapping[str, Shares] | None = None,
    *,
    marks: Kind = "measured",
    title: str = "How much of each GPU is left?",
    subtitle: str = "",
) -> Picture:
    """A line for each name in `predicted`, marks of the same hue for what was `measured`; both map GPUs to efficiency.

    Efficiency is one GPU's time for a batch over n GPUs' time for n batches. A name that was only measured has marks
    alone. `marks` says of which kind the marks are: of real time, or of the emulated clock.
    Raises: ValueError for nothing to draw, too many lines, or counts and efficiencies that are not positive.
    """
    subtitle = subtitle or f"lines: predicted; marks: {marks}; 100% = as many times faster as there are GPUs"
    return _CHART.draw(predicted, measured or {}, marks, title, subtitle)
