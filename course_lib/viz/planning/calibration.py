"""How far predicted step times are off, by source: runs whose source was fitted beside runs of a source left out."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

from course_lib.sim.report import NOISE, SOURCE_NAMES, SUMMARIES, committed_records
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture

_LEFT, _RIGHT, _ROW = 3.1, 1.5, 0.3
_HUE = style.RUN_HUES[1]
_TESTS = {"random rows": "|", "sources": "D"}  # and their marks
_EVERY = 0.05
_LEAST = 8  # runs: of fewer a middle says little


@sheet.course_style()
def plot_calibration() -> Picture:
    """The committed error table: for each source of eight runs or more the median error, seen and left out."""
    records = committed_records()
    errors = {test: {row["group"]: float(row["median"]) for row in records if row["test"] == test} for test in _TESTS}
    rows = {row["group"]: int(row["rows"]) for row in records if row["test"] == "sources"}
    drawn = (name for name, runs in rows.items() if name not in SUMMARIES and runs >= _LEAST)
    sources = sorted(drawn, key=lambda name: errors["sources"][name])
    noise = next(float(row["median"]) for row in records if row["test"] == NOISE)
    title = "Predicted step times: how far off, by source"
    subtitle = "diamond: the source was left out of the fit; stroke: other runs of it were fitted"
    height = style.HEADER + len(sources) * _ROW + 1.05
    figure, page = sheet.new_page(height, title, subtitle)
    width, tall = style.PAGE_WIDTH - _LEFT - _RIGHT, len(sources) * _ROW
    chart = sheet.chart_axes(figure, _LEFT, style.HEADER, width, tall)
    _draw(chart, sources, errors, noise)
    for number, source in enumerate(sources):
        middle = style.HEADER + (number + 0.5) * _ROW
        marks.label(page, style.MARGIN, middle, SOURCE_NAMES[source], bold=True, align="left")
        marks.label(page, style.PAGE_WIDTH - style.MARGIN, middle, f"{rows[source]} runs", align="right")
    return Picture(figure, title=title, description=_in_words(sources, errors, noise), kinds=["formula", "measured"])


def _draw(chart: Axes, sources: list[str], errors: dict[str, dict[str, float]], noise: float) -> None:
    """A mark for each test, joined by a line; what repeated measurements differ by is shaded."""
    chart.axvspan(0, noise, color=style.PANEL, zorder=0)
    for number, source in enumerate(sources):
        ends = [errors[test][source] for test in _TESTS]
        chart.plot(ends, [number, number], color=style.FAINT, linewidth=2, zorder=1)
        for end, mark in zip(ends, _TESTS.values(), strict=True):
            size = 8 if mark == "D" else 14
            chart.plot(end, number, mark, ms=size, mew=2.4, color=_HUE, zorder=3, clip_on=False)
    most = max(max(errors[test].values()) for test in _TESTS)
    chart.set(xlim=(0, 1.08 * most), ylim=(len(sources) - 0.5, -0.5), yticks=[])
    chart.xaxis.set_major_locator(MultipleLocator(_EVERY))
    chart.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    chart.grid(visible=False, axis="y")
    chart.tick_params(length=0, pad=6)
    chart.set_xlabel(f"middle error of its runs; shaded: two tables of one run, {noise:.1%} apart", labelpad=8)


def _in_words(sources: list[str], errors: dict[str, dict[str, float]], noise: float) -> str:
    lines = [f"shaded: how far two tables of one run differ, {noise:.1%} in the middle"]
    for source in sources:
        seen, left_out = (errors[test][source] for test in _TESTS)
        lines.append(f"  {SOURCE_NAMES[source]}: random rows {seen:.1%}, left out {left_out:.1%}")
    return "\n".join(lines)
