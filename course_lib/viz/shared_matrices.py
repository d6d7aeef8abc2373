"""Matrices and vectors that two ranks share: whose each number is, and bars where the ranks have to talk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from course_lib.viz import keys, marks, style

RANKS = 2
CELL, _GAP = 0.235, 0.03  # inches: a number, between numbers
OUTSIDE = (-1,)  # stands for the ranks of a number that was not made by one, or that all make alike
UNREAD = (-2,)  # the same, where a rank has the number and does not read it
Holders = Sequence[tuple[int, ...]]  # for each number of a vector the ranks whose work is in it; () if it is not here

_OF_BOTH = keys.Entry("made of both ranks' terms", style.RANK_HUES[:RANKS])
KEY = (
    keys.Entry("kept or made by rank 0", style.RANK_HUES[:1]),
    keys.Entry("by rank 1", style.RANK_HUES[1:2]),
    keys.Entry("the same on both", [style.SOFT]),
    keys.Entry("not here", [style.PANEL]),
)
KEY_WITH_SUMS = (*KEY, _OF_BOTH)
OF_UNREAD = keys.Entry("here, not read", [style.SOFT], striped=True)


def part(length: int, rank: int) -> range:
    """The places of a vector that are a rank's."""
    return range(rank * length // RANKS, (rank + 1) * length // RANKS)


def draw_vector(page: Axes, left: float, middle: float, holders: Holders, name: str) -> None:
    """A column of numbers, centred on `middle`."""
    y = middle - len(holders) * CELL / 2
    marks.label(page, left + CELL / 2, y - 0.2, name, size=style.SMALL_SIZE, bold=name in "xy")
    size = CELL - _GAP
    for place, ranks in enumerate(holders):
        at = (left, y + place * CELL)
        if ranks == OUTSIDE:
            draw_cell(page, *at, style.SOFT)
        elif ranks == UNREAD:
            marks.box(page, *at, size, size, edge=style.SOFT, striped=True, corner=0.03)
        elif len(ranks) > 1:
            for slot, rank in enumerate(ranks):
                wide = size / len(ranks)
                marks.box(page, at[0] + slot * wide, at[1], wide, size, fill=style.rank_hue(rank), corner=0)
        else:
            draw_cell(page, *at, style.rank_hue(ranks[0]) if ranks else "")


def draw_table(
    page: Axes, left: float, middle: float, shape: tuple[int, int], rows: range, columns: range, *, hue: str, name: str
) -> None:
    """A matrix, coloured where the rank has it."""
    y = middle - shape[0] * CELL / 2
    for row in range(shape[0]):
        for column in range(shape[1]):
            mine = row in rows and column in columns
            draw_cell(page, left + column * CELL, y + row * CELL, hue if mine else "")
    marks.label(page, left + (shape[1] * CELL - _GAP) / 2, y - 0.2, name, bold=True)


def draw_cell(page: Axes, x: float, y: float, hue: str) -> None:
    """A number; without a hue an empty place."""
    size = CELL - _GAP
    marks.box(page, x, y, size, size, fill=hue or style.PANEL, edge="none" if hue else style.FAINT, corner=0.03)


def draw_arrows(page: Axes, x: float, middles: Sequence[float]) -> None:
    """In each rank's half of the picture one arrow: its numbers go on."""
    for y in middles:
        marks.arrow(page, (x - 0.3, y), (x + 0.32, y), line=1.6)


def draw_bar(page: Axes, x: float, middles: Sequence[float], operation: str, sent: str) -> None:
    """Arrows, and over all ranks a bar where they talk, with what each rank `sent` below it."""
    draw_arrows(page, x, middles)
    top, foot = middles[0] - 0.25, middles[-1] + 0.5
    middle = (top + foot) / 2
    marks.box(page, x - 0.15, top, 0.3, foot - top, fill=style.COMMUNICATION, zorder=4)
    look: dict[str, Any] = {"size": style.SMALL_SIZE, "weight": 600, "color": style.PAPER, "ha": "center"}
    page.text(x, middle, operation, rotation=90, va="center", zorder=6, **look)
    reach = style.text_width(sent, style.SMALL_SIZE) / 2 + 0.08  # its bold letters are a little wider
    within = min(x, style.PAGE_WIDTH - style.MARGIN - reach)
    marks.label(page, within, foot + 0.16, sent, size=style.SMALL_SIZE, bold=True)
