"""Two models of one mind: which of the likeliest tokens they share, and how far their logits are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course_lib.errors import four_parts
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.lines import Line, draw_line, name_ends
from course_lib.viz.ink.picture import Picture

_LEFT, _RIGHT = style.MARGIN + 0.95, 2.7  # inches: numbers up the side, names
_SHARE, _ERROR = 2.0, 1.6  # inches: the two panels
_WIDTH = style.PAGE_WIDTH - _LEFT - _RIGHT


class Agreement(Protocol):
    """By k: which share of the reference's k likeliest tokens is among the other's, and their logits' mean error."""

    @property
    def agreement(self) -> Mapping[int, float]: ...
    @property
    def errors(self) -> Mapping[int, float]: ...


@sheet.course_style()
def plot_agreement(runs: Mapping[str, Agreement], *, reference: str, title: str = "") -> Picture:
    """Above the share of the reference's k likeliest tokens that each run agrees on, below the error of their logits.

    Raises: ValueError for no runs, more than there are hues, or runs of other k.
    """
    ks = {tuple(sorted(run.agreement)) for run in runs.values()}
    if not 1 <= len(runs) < len(style.RUN_HUES) or len(ks) != 1:
        values, rule = f"{len(runs)} runs, {len(ks)} choices of k", "the runs of one picture have the same k"
        way_out = f"give 1 to {len(style.RUN_HUES) - 1} reports with the same top_k"
        raise ValueError(four_parts("plot_agreement", values, rule, way_out))
    title = title or "The likeliest tokens, and their logits"
    subtitle = f"the k tokens that {reference} finds likeliest; averages over all positions"
    top, below = style.HEADER + 0.42, style.HEADER + 0.42 + _SHARE + 0.68
    figure, page = sheet.new_page(below + _ERROR + 0.85, title, subtitle)
    marks.label(page, _LEFT, top - 0.24, "share of them that is among the run's own k", colour=style.SOFT, align="left")
    marks.label(
        page, _LEFT, below - 0.24, "how far off their logits are (mean absolute error)", colour=style.SOFT, align="left"
    )
    hues = dict(zip(runs, style.RUN_HUES[1:], strict=False))
    shares = [Line(name, hues[name], run.agreement) for name, run in runs.items()]
    errors = [Line(name, hues[name], run.errors) for name, run in runs.items()]
    upper = sheet.chart_axes(figure, _LEFT, top, _WIDTH, _SHARE)
    lower = sheet.chart_axes(figure, _LEFT, below, _WIDTH, _ERROR)
    least = min(value for line in shares for value in line.points.values())
    _draw(upper, shares, (least - 0.4 * (1.01 - least), 1.002))
    upper.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%" if value <= 1 else "")
    most = max(value for line in errors for value in line.points.values())
    _draw(lower, errors, (0.0, 1.1 * most or 1.0))
    lower.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    name_ends(upper, shares, least=0.3 / _SHARE)
    name_ends(lower, errors, least=0.3 / _ERROR)
    upper.tick_params(labelbottom=False)
    lower.set_xlabel("k", labelpad=6)
    return Picture(figure, title=title, description=_in_words(runs, subtitle), kinds=["measured"])


def _draw(chart: Axes, lines: list[Line], reach: tuple[float, float]) -> None:
    """Later ones have wider gaps, so that lines upon each other are all seen."""
    for number, line in enumerate(lines):
        draw_line(chart, line._replace(width=2.4, shown=1 - number / len(lines)))
    chart.set_ylim(*reach)
    ks = [*lines[0].points]
    chart.set_xlim(min(ks), max(max(ks), min(ks) + 1))
    chart.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 5, 10]))
    chart.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    chart.tick_params(length=0, pad=6)
    charts.centre_on_ticks(chart)


def _in_words(runs: Mapping[str, Agreement], subtitle: str) -> str:
    lines = [subtitle]
    for name, run in runs.items():
        first, last = min(run.agreement), max(run.agreement)
        shares = f"{run.agreement[first]:.1%} at k = {first}, {run.agreement[last]:.1%} at k = {last}"
        lines.append(f"  {name}: {shares}; mean error {run.errors[first]:.2g} and {run.errors[last]:.2g}")
    return "\n".join(lines)
