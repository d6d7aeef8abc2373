"""Matrices and vectors that two ranks share: whose each number is, and bars where the ranks have to talk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes

from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.entries import Entry

RANKS = 2
CELL, _GAP = 0.235, 0.03  # inches: from a number to the next, between them
_SIZE = CELL - _GAP
OUTSIDE = (-1,)  # stands for the ranks of a number that was not made by one, or that all make alike
UNREAD = (-2,)  # the same, where a rank has the number and does not read it
Holders = Sequence[tuple[int, ...]]  # for each number of a vector the ranks whose work is in it; () if it is not here

_OF_BOTH = Entry("made of both ranks' terms", style.RANK_HUES[:RANKS])
KEY = (
    Entry("kept or made by rank 0", style.RANK_HUES[:1]),
    Entry("by rank 1", style.RANK_HUES[1:2]),
    Entry("the same on both", [style.SOFT]),
    Entry("not here", [style.SOFT], dashed=True),
)
KEY_WITH_SUMS = (*KEY, _OF_BOTH)
OF_UNREAD = Entry("here, not read", [style.IDLE])


def part(length: int, rank: int) -> range:
    """The places of a vector that are a rank's."""
    return range(rank * length // RANKS, (rank + 1) * length // RANKS)


def draw_vector(page: Axes, left: float, middle: float, holders: Holders, name: str) -> None:
    """A column of numbers, centred on `middle`."""
    y = middle - len(holders) * CELL / 2
    marks.label(page, left + CELL / 2, y - 0.2, name, size=style.SMALL_SIZE, bold=name in "xy")
    hues = {OUTSIDE: style.SOFT, UNREAD: style.IDLE}
    for place, ranks in enumerate(holders):
        slots = [hues[ranks]] if ranks in hues else [style.rank_hue(rank) for rank in ranks]
        if len(slots) == 1:
            _draw_cell(page, left, y + place * CELL, slots[0])
        for slot, hue in enumerate(slots if len(slots) > 1 else ()):
            wide = _SIZE / len(slots)
            marks.box(page, left + slot * wide, y + place * CELL, wide, _SIZE, fill=hue, corner=0)
    _draw_absent(page, left, y, [(place, 0) for place, ranks in enumerate(holders) if not ranks])


def draw_table(
    page: Axes, left: float, middle: float, shape: tuple[int, int], rows: range, columns: range, *, hue: str, name: str
) -> None:
    """A matrix, coloured where the rank has it."""
    y = middle - shape[0] * CELL / 2
    absent = []
    for row, column in product(range(shape[0]), range(shape[1])):
        if row in rows and column in columns:
            _draw_cell(page, left + column * CELL, y + row * CELL, hue)
        else:
            absent.append((row, column))
    _draw_absent(page, left, y, absent)
    marks.label(page, left + (shape[1] * CELL - _GAP) / 2, y - 0.2, name, bold=True)


def _draw_cell(page: Axes, x: float, y: float, hue: str) -> None:
    """A number."""
    marks.box(page, x, y, _SIZE, _SIZE, fill=hue, corner=0.03)


def _draw_absent(page: Axes, left: float, top: float, places: Sequence[tuple[int, int]]) -> None:
    """One outline around the numbers, by row and column, that a rank has not: the other's, side by side."""
    if not places:
        return
    rows, columns = zip(*places, strict=True)
    x, y = left + min(columns) * CELL, top + min(rows) * CELL
    wide, tall = (CELL * (max(along) - min(along) + 1) - _GAP for along in (columns, rows))
    marks.box(page, x, y, wide, tall, fill="none", edge=style.SOFT, line=0.8, corner=0.03, dashed=True)


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
    look: dict[str, Any] = {"size": style.SMALL_SIZE, "weight": 600, "color": style.WHITE_LETTERS, "ha": "center"}
    page.text(x, middle, operation, rotation=90, va="center", zorder=6, **look)
    reach = sheet.text_width(sent, style.SMALL_SIZE) / 2 + 0.08  # its bold letters are a little wider
    within = min(x, style.PAGE_WIDTH - style.MARGIN - reach)
    marks.label(page, within, foot + 0.16, sent, size=style.SMALL_SIZE, bold=True)
