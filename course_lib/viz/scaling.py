"""How much of each further GPU arrives: scaling efficiency against the number of GPUs, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.viz import charts, style
from course_lib.viz.badges import Kind
from course_lib.viz.picture import Picture

Efficiency = Mapping[int, float]  # GPUs -> share of ideal speed
_LEFT, _RIGHT, _HEIGHT = style.MARGIN + 0.8, 2.3, 5.625
_MOST_LINES = len(style.RUN_HUES) - 1
_IDEAL = style.SOFT


@style.course_style()
def plot_scaling(
    predicted: Mapping[str, Efficiency],
    measured: Mapping[str, Efficiency] | None = None,
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
    measured = measured or {}
    subtitle = subtitle or f"lines: predicted; marks: {marks}; 100% = as many times faster as there are GPUs"
    names = list(dict.fromkeys((*predicted, *measured)))
    _check(names, [*predicted.values(), *measured.values()])
    hues = dict(zip(names, style.RUN_HUES[1:], strict=False))
    counts = [n for line in (*predicted.values(), *measured.values()) for n in line]
    figure, _ = style.new_page(_HEIGHT, title, subtitle)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    chart = style.chart_axes(figure, _LEFT, style.HEADER + 0.16, width, _HEIGHT - style.HEADER - 1.1)
    _prepare(chart, counts, max(share for line in (*predicted.values(), *measured.values()) for share in line.values()))
    for name, line in predicted.items():
        charts.draw_line(chart, line, hues[name])
    for number, (name, line) in enumerate(measured.items()):
        beyond_one = {n: share for n, share in line.items() if n > 1}  # at 1 GPU it is 100% by definition
        charts.draw_marks(chart, beyond_one, hues[name], number)
    labels = [("ideal", _IDEAL, charts.height_of(chart, 1.0))]
    labels += [(name, hues[name], charts.height_of(chart, line[max(line)])) for name, line in predicted.items()]
    charts.name_heights(chart, labels, least=0.085)
    for name in names:
        if name not in predicted:
            charts.name_marks(chart, measured[name], name, hues[name])
    words = _in_words(predicted, measured, marks, subtitle)
    shown: dict[Kind, Mapping[str, Efficiency]] = {"formula": predicted, marks: measured}
    return Picture(figure, title=title, description=words, kinds=[kind for kind, lines in shown.items() if lines])


def _check(names: list[str], lines: list[Efficiency]) -> None:
    if not 1 <= len(names) <= _MOST_LINES or not all(lines):
        values = f"{len(names)} lines of {', '.join(str(len(line)) for line in lines) or 'no'} points"
        rule = f"this picture holds 1 to {_MOST_LINES} lines, each with points"
        raise ValueError(four_parts("plot_scaling", values, rule, "leave some out, or draw two pictures"))
    for line in lines:
        for gpus, share in line.items():
            if not (gpus >= 1 and share > 0):
                values, rule = f"efficiency {share} on {gpus} GPUs", "both are positive"
                raise ValueError(four_parts("plot_scaling", values, rule, "give time on one GPU / time on n GPUs"))


def _prepare(chart: Axes, counts: list[int], largest: float) -> None:
    """From 0 to 100%, or to the largest there is; the ideal is dashed."""
    charts.count_axis(chart, counts, "GPUs")
    chart.set_ylim(0, max(1.0, largest) * 1.05)
    chart.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    chart.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    chart.tick_params(axis="y", length=0, pad=6)
    charts.centre_on_ticks(chart)
    chart.axhline(1.0, color=_IDEAL, linewidth=1.5, linestyle=(0, (4, 3)), zorder=1)


def _in_words(
    predicted: Mapping[str, Efficiency], measured: Mapping[str, Efficiency], marks: Kind, subtitle: str
) -> str:
    lines = [subtitle]
    for word, group in (("predicted", predicted), (marks, measured)):
        for name, line in group.items():
            cells = ", ".join(f"{share:.1%} on {n:,}" for n, share in sorted(line.items()))
            lines.append(f"  {name}, {word}: {cells}")
    return "\n".join(lines)
