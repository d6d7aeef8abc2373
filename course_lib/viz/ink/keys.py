"""The row above a picture that says what its colours mean; in several lines if one is too short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.entries import Entry, broken

LINE = 0.3  # inches from one line to the next
_GAP, _SPACE = 0.08, 0.28  # between swatch and word, between entries


def lines_of(entries: Sequence[Entry], left: float) -> list[list[Entry]]:
    """The entries in lines that fit between `left` and the page's margin."""
    return broken(entries, _width, style.PAGE_WIDTH - style.MARGIN - left + _SPACE)


def draw_key(page: Axes, entries: Sequence[Entry], left: float) -> None:
    """All entries, from below the page's header on."""
    for number, line in enumerate(lines_of(entries, left)):
        x, y = left, style.HEADER + 0.1 + number * LINE
        for entry in line:
            _draw_entry(page, entry, x, y)
            x += _width(entry)


def _draw_entry(page: Axes, entry: Entry, x: float, y: float) -> None:
    corner = 0.03 if len(entry.hues) == 1 else 0.0
    for number, hue in enumerate(entry.hues):
        outlined = entry.striped or entry.dashed
        edge = hue if outlined else "none"
        look: dict[str, Any] = {"fill": "none" if outlined else hue, "edge": edge}
        look |= {"striped": entry.striped, "dashed": entry.dashed}
        marks.box(page, x + number * _swatch(entry), y - 0.08, _swatch(entry), 0.16, corner=corner, **look)
    x += len(entry.hues) * _swatch(entry) + (_GAP if entry.hues else 0.0)
    marks.label(page, x, y, entry.text, size=style.SMALL_SIZE, colour=style.SOFT, align="left")


def _swatch(entry: Entry) -> float:
    """Inches across of one swatch."""
    return max(0.26 / len(entry.hues), 0.15) if entry.hues else 0.0


def _width(entry: Entry) -> float:
    """Inches to the next entry."""
    swatches = len(entry.hues) * _swatch(entry) + _GAP if entry.hues else 0.0
    return swatches + sheet.text_width(entry.text, style.SMALL_SIZE) + _SPACE
