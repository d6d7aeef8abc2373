"""The idle part of a pipeline's step against the number of micro-batches, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.viz import charts, style
from course_lib.viz.badges import Kind
from course_lib.viz.picture import Picture

Shares = Mapping[int, float]  # micro-batches -> share of the step
_LEFT, _HEIGHT = style.MARGIN + 0.8, 5.3
_MOST_LINES = len(style.RUN_HUES) - 1


@style.course_style()
def plot_idle(
    predicted: Mapping[str, Shares],
    measured: Mapping[str, Shares] | None = None,
    *,
    marks: Kind = "measured",
    title: str = "More micro-batches, less idle time",
    subtitle: str = "",
) -> Picture:
    """A line for each name in `predicted`, marks of the same hue for what was `measured`; both map m to a share.

    `marks` says of which kind those are: of real time, or of the emulated clock.

    Raises: ValueError for nothing to draw, too many lines, or shares that are not from 0 to 1.
    """
    measured = measured or {}
    subtitle = subtitle or f"idle part of the step; lines: predicted; marks: {marks}"
    names, lines = list(dict.fromkeys((*predicted, *measured))), [*predicted.values(), *measured.values()]
    _check(names, lines)
    hues = dict(zip(names, style.RUN_HUES[1:], strict=False))
    figure, _ = style.new_page(_HEIGHT, title, subtitle)
    right = style.MARGIN + 0.32 + max(style.text_width(name, weight=600) for name in names)
    width = style.PAGE_WIDTH - _LEFT - right
    chart = style.chart_axes(figure, _LEFT, style.HEADER + 0.1, width, _HEIGHT - style.HEADER - 1.0)
    _prepare(chart, lines)
    for name, line in predicted.items():
        charts.draw_line(chart, line, hues[name])
    for number, (name, line) in enumerate(measured.items()):
        charts.draw_marks(chart, line, hues[name], number)
    ends = [(name, hues[name], charts.height_of(chart, line[max(line)])) for name, line in predicted.items()]
    if ends:
        charts.name_heights(chart, ends, least=0.085)
    for name in names:
        if name not in predicted:
            charts.name_marks(chart, measured[name], name, hues[name])
    words = _in_words(predicted, measured, marks, subtitle)
    shown: dict[Kind, Mapping[str, Shares]] = {"formula": predicted, marks: measured}
    return Picture(figure, title=title, description=words, kinds=[kind for kind, lines in shown.items() if lines])


def _check(names: list[str], lines: list[Shares]) -> None:
    if not 1 <= len(names) <= _MOST_LINES or not all(lines):
        values = f"{len(names)} lines of {', '.join(str(len(line)) for line in lines) or 'no'} points"
        rule = f"this picture holds 1 to {_MOST_LINES} lines, each with points"
        raise ValueError(four_parts("plot_idle", values, rule, "leave some out, or draw two pictures"))
    for line in lines:
        for m, share in line.items():
            if not (m >= 1 and 0 <= share < 1):
                values, rule = f"share {share} with {m} micro-batches", "it is a part of the step, at least 0, below 1"
                raise ValueError(four_parts("plot_idle", values, rule, "give idle time / length of the step"))


def _prepare(chart: Axes, lines: list[Shares]) -> None:
    """From 0 to above the largest share, in steps of 10 or 20 percent."""
    charts.count_axis(chart, [m for line in lines for m in line], "micro-batches m")
    largest = max(share for line in lines for share in line.values())
    step = 0.2 if largest > 0.5 else 0.1
    top = step * max(1, ceil(round(largest / step, 9)))
    chart.set_ylim(0, top * 1.03)
    chart.set_yticks([step * k for k in range(round(top / step) + 1)])
    chart.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    chart.tick_params(axis="y", length=0, pad=6)
    charts.centre_on_ticks(chart)


def _in_words(predicted: Mapping[str, Shares], measured: Mapping[str, Shares], marks: Kind, subtitle: str) -> str:
    lines = [subtitle]
    for word, group in (("predicted", predicted), (marks, measured)):
        for name, line in group.items():
            cells = ", ".join(f"{share:.1%} with m = {m}" for m, share in sorted(line.items()))
            lines.append(f"  {name}, {word}: {cells}")
    return "\n".join(lines)
