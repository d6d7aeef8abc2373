"""Shares against counts: what was predicted as lines, what ran as marks of the same hue, both in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.viz.ink import charts, lines, sheet, style
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.lines import Line
from course_lib.viz.ink.picture import Picture

Shares = Mapping[int, float]  # by count
_LEFT, _HEIGHT = style.MARGIN + 0.8, 5.3
_MOST = len(style.RUN_HUES) - 1


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What one chart of shares is about: its axes, which shares there are, and how one is said."""

    operation: str
    counts: str  # below the axis
    legal: Callable[[float], bool]
    refusal: str  # of {share} at {count}
    rule: str
    way_out: str
    says: str  # {share} at {count}
    axis: Callable[[float], tuple[float, Sequence[float]]]  # from the largest share: the top, and what is named
    ideal: bool = False  # a dashed line at 100%, where one alone is by definition: no mark stands there

    def draw(
        self, predicted: Mapping[str, Shares], ran: Mapping[str, Shares], kind: Kind, title: str, subtitle: str
    ) -> Picture:
        """A line for each name in `predicted`, marks of the same hue for what `ran`, which is of a kind."""
        names, every = list(dict.fromkeys((*predicted, *ran))), [*predicted.values(), *ran.values()]
        self._check(names, every)
        hues = dict(zip(names, style.RUN_HUES[1:], strict=False))
        on_paper = [Line(name, hues[name], shares) for name, shares in predicted.items()]
        marked = [Line(name, hues[name], shares) for name, shares in ran.items()]
        ideal = [Line("ideal", style.SOFT, {1: 1.0})] * self.ideal
        figure, _ = sheet.new_page(_HEIGHT, title, subtitle)
        right = style.MARGIN + 0.32 + max(sheet.text_width(line.name, weight=600) for line in on_paper + marked + ideal)
        width, height = style.PAGE_WIDTH - _LEFT - right, _HEIGHT - style.HEADER - 1.0
        chart = sheet.chart_axes(figure, _LEFT, style.HEADER + 0.1, width, height)
        self._prepare(chart, every)
        for line in on_paper:
            lines.draw_line(chart, line)
        for number, line in enumerate(marked):
            beyond = {count: share for count, share in line.points.items() if count > 1 or not self.ideal}
            lines.draw_marks(chart, line._replace(points=beyond), number)
        if ideal or on_paper:
            lines.name_ends(chart, ideal + on_paper, least=0.085)
        for line in marked:
            if line.name not in predicted:
                lines.name_marks(chart, line)
        shown: dict[Kind, Mapping[str, Shares]] = {"formula": predicted, kind: ran}
        kinds = [one for one, group in shown.items() if group]
        return Picture(figure, title=title, description=self._words(predicted, ran, kind, subtitle), kinds=kinds)

    def _check(self, names: list[str], every: list[Shares]) -> None:
        if not 1 <= len(names) <= _MOST or not all(every):
            values = f"{len(names)} lines of {', '.join(str(len(shares)) for shares in every) or 'no'} points"
            rule = f"this picture holds 1 to {_MOST} lines, each with points"
            raise ValueError(four_parts(self.operation, values, rule, "leave some out, or draw two pictures"))
        for shares in every:
            for count, share in shares.items():
                if not (count >= 1 and self.legal(share)):
                    values = self.refusal.format(share=share, count=count)
                    raise ValueError(four_parts(self.operation, values, self.rule, self.way_out))

    def _prepare(self, chart: Axes, every: Sequence[Shares]) -> None:
        charts.count_axis(chart, [count for shares in every for count in shares], self.counts)
        top, ticks = self.axis(max(share for shares in every for share in shares.values()))
        chart.set_ylim(0, top)
        chart.set_yticks(ticks)
        chart.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        chart.tick_params(axis="y", length=0, pad=6)
        charts.centre_on_ticks(chart)
        if self.ideal:
            chart.axhline(1.0, color=style.SOFT, linewidth=1.5, linestyle=(0, (4, 3)), zorder=1)

    def _words(self, predicted: Mapping[str, Shares], ran: Mapping[str, Shares], kind: Kind, subtitle: str) -> str:
        said = [subtitle]
        for word, group in (("predicted", predicted), (kind, ran)):
            for name, shares in group.items():
                cells = ", ".join(self.says.format(share=share, count=count) for count, share in sorted(shares.items()))
                said.append(f"  {name}, {word}: {cells}")
        return "\n".join(said)
