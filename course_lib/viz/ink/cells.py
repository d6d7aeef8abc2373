"""Numbers in cells, as matrices: the colour says the sign and the size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from matplotlib.axes import Axes

from course_lib.viz.ink import marks, style

POSITIVE, NEGATIVE = "#00703C", "#7B3294"  # green and violet: told apart by all, and no rank's hue
KEY = "green: above 0   violet: below 0   stronger: larger"
Table = Sequence[Sequence[float]]  # rows of numbers; a vector is one column


def draw_table(
    page: Axes,
    left: float,
    top: float,
    table: Table,
    *,
    cell: tuple[float, float],
    gap: float,
    largest: float,
    text: Callable[[float], str],
) -> None:
    """Each number, written by `text`, in a cell of `cell` inches across and down, `gap` of them from the next."""
    across, down = cell
    for y, row in enumerate(table):
        for x, number in enumerate(row):
            place = (left + x * across, top + y * down)
            fill = colour(number, largest)
            marks.box(page, *place, across - gap, down - gap, fill=fill)
            middle = (place[0] + (across - gap) / 2, place[1] + (down - gap) / 2)
            marks.label(page, *middle, text(number), size=style.SMALL_SIZE, colour=style.text_on(fill))


def largest_of(tables: Iterable[Table]) -> float:
    """The largest size of a finite number."""
    numbers = (abs(number) for table in tables for row in table for number in row)
    return max(filter(math.isfinite, numbers), default=0.0)


def colour(number: float, largest: float) -> str:
    """The stronger, the nearer to the largest number of the picture; grey for 0 and for what is no number."""
    if number == 0 or not math.isfinite(number):
        return style.PANEL
    return style.tint(POSITIVE if number > 0 else NEGATIVE, 0.06 + 0.6 * abs(number) / largest)


def written(number: float, decimals: int = 2) -> str:
    """What rounds to zero has no sign.

    >>> written(-0.25), written(-0.001), written(-7.4, 0)
    ('−0.25', '0.00', '−7')
    """
    text = f"{number:.{decimals}f}"
    return (text if text.strip("-0.") else text.removeprefix("-")).replace("-", "−")
