"""Where ranks that should hold the same numbers do not: a dot for each number that differs from rank 0's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture

Run = Sequence[Sequence[float]]  # by rank, the numbers that it holds
_MOST, _ACROSS = 4, 40  # ranks in a row of the picture, numbers in a line of a square
_NAMES, _GAP, _BELOW = 1.3, 0.3, 0.62  # inches: names of the runs, between squares, what is said below each


@sheet.course_style()
def plot_disagreement(runs: Mapping[str, Run], *, title: str = "Numbers that are not rank 0's") -> Picture:
    """For each run and each rank but 0 a square of all its numbers, dark where one differs from rank 0's in any bit.

    Raises: ValueError for fewer than 2 or more than 4 ranks, and for ranks that hold unequally many numbers.
    """
    ranks = {len(run) for run in runs.values()}
    lengths = {len(numbers) for run in runs.values() for numbers in run}
    if len(ranks) != 1 or not 2 <= max(ranks) <= _MOST or len(lengths) != 1:
        values, rule = f"{sorted(ranks)} ranks, {sorted(lengths)} numbers", f"2 to {_MOST} ranks with equally many"
        raise ValueError(four_parts("plot_disagreement", values, rule, "give every run's numbers by rank"))
    others, length = range(1, max(ranks)), max(lengths)
    wide = min(2.2, (style.PAGE_WIDTH - 2 * style.MARGIN - _NAMES) / len(others) - _GAP)
    cell = wide / min(_ACROSS, length)
    tall = math.ceil(length / _ACROSS) * cell
    top = style.HEADER + 0.42
    subtitle = f"{length:,} numbers on each rank, row by row; dark: not bit for bit what rank 0 holds"
    figure, page = sheet.new_page(top + len(runs) * (tall + _BELOW) + 0.1, title, subtitle)
    lines = [subtitle]
    for row, (name, run) in enumerate(runs.items()):
        y = top + row * (tall + _BELOW)
        marks.label(page, style.MARGIN, y + tall / 2, name, bold=True, align="left")
        for column, rank in enumerate(others):
            x = style.MARGIN + _NAMES + column * (wide + _GAP)
            places = [place for place, (a, b) in enumerate(zip(run[0], run[rank], strict=True)) if a != b]
            if row == 0:
                marks.rank_badge(page, x + wide / 2, top - 0.24, rank)
            _draw_square(page, (x, y), (wide, tall), cell, places)
            marks.label(page, x + wide / 2, y + tall + 0.2, _counted(places), size=style.SMALL_SIZE, colour=style.SOFT)
            lines.append(f"  {name}, rank {rank}: {_counted(places)}")
    return Picture(figure, title=title, description="\n".join(lines), kinds=["measured"])


def _draw_square(
    page: Axes, at: tuple[float, float], size: tuple[float, float], cell: float, places: Sequence[int]
) -> None:
    """All dark numbers are one path, which keeps the picture small."""
    marks.box(page, *at, *size, fill=style.PANEL, edge=style.FAINT, corner=0.02)
    xs = [at[0] + (place % _ACROSS + 0.5) * cell for place in places]
    ys = [at[1] + (place // _ACROSS + 0.5) * cell for place in places]
    page.scatter(xs, ys, s=(cell * 72 * 0.92) ** 2, marker="s", color=style.INK, linewidths=0, zorder=3)


def _counted(places: Sequence[int]) -> str:
    return f"{len(places):,} differ{'s' * (len(places) == 1)}" if places else "all equal"
