"""The lines on a canvas that say what its colours mean."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import EDGE, SMALL, WIDTH, Canvas, text_width
from course_lib.viz.ink.entries import Entry, broken

KEY_LINE = 22.0
_SWATCH, _GAP, _SPACE = 13.0, 6.0, 18.0


def key_lines(entries: Sequence[Entry], room: float = WIDTH - 2 * EDGE) -> list[list[Entry]]:
    """The entries in lines that fit between the margins of a card."""
    return broken(entries, _width, room + _SPACE)


def draw_key(canvas: Canvas, entries: Sequence[Entry], y: float) -> None:
    """The first line is centred on `y`. A striped entry is an outline, and so is a dashed one, in dashes."""
    for number, line in enumerate(key_lines(entries, canvas.width - 2 * canvas.edge)):
        x, middle = canvas.edge, y + number * KEY_LINE
        for entry in line:
            for place, hue in enumerate(entry.hues):
                outline = {"fill": "none", "stroke": hue, "stroke_width": 1.6}
                look = outline if entry.striped or entry.dashed else {"fill": hue}
                look |= {"stroke_dasharray": "3 2"} if entry.dashed else {}
                canvas.box(x + place * _SWATCH, middle - 6, _SWATCH, 12, **look)
            at = x + len(entry.hues) * _SWATCH + _GAP * bool(entry.hues)
            canvas.text(at, middle, entry.text, size=SMALL, colour=style.SOFT)
            x += _width(entry)


def _width(entry: Entry) -> float:
    swatches = len(entry.hues) * _SWATCH + _GAP if entry.hues else 0.0
    return swatches + text_width(entry.text, SMALL) + _SPACE
