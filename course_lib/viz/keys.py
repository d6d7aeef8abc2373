"""The row above a picture that says what its colours mean; in several lines if one is too short."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from matplotlib.axes import Axes

from course_lib.viz import marks, style

Thing = TypeVar("Thing")
LINE = 0.3  # inches from one line to the next
_GAP, _SPACE = 0.08, 0.28  # between swatch and word, between entries


class Entry(NamedTuple):
    """What is said, after swatches of its colours; none for a remark."""

    text: str
    hues: Sequence[str] = ()
    striped: bool = False
    dashed: bool = False  # an empty place, with an outline of its colour

    @property
    def swatch(self) -> float:
        """Inches across of one swatch."""
        return max(0.26 / len(self.hues), 0.15) if self.hues else 0.0

    @property
    def width(self) -> float:
        """Inches to the next entry."""
        swatches = len(self.hues) * self.swatch + _GAP if self.hues else 0.0
        return swatches + style.text_width(self.text, style.SMALL_SIZE) + _SPACE


def lines_of(entries: Sequence[Entry], left: float) -> list[list[Entry]]:
    """The entries in lines that fit between `left` and the page's margin."""
    return broken(entries, lambda entry: entry.width, style.PAGE_WIDTH - style.MARGIN - left + _SPACE)


def broken(things: Iterable[Thing], width_of: Callable[[Thing], float], room: float) -> list[list[Thing]]:
    """Things in as few lines as their widths allow, in their order; each is followed by a space, the last one too."""
    lines: list[list[Thing]] = [[]]
    for thing in things:
        if lines[-1] and sum(map(width_of, [*lines[-1], thing])) > room:
            lines.append([])
        lines[-1].append(thing)
    return lines


def draw_key(page: Axes, entries: Sequence[Entry], left: float) -> None:
    """All entries, from below the page's header on."""
    for number, line in enumerate(lines_of(entries, left)):
        x, y = left, style.HEADER + 0.1 + number * LINE
        for entry in line:
            _draw_entry(page, entry, x, y)
            x += entry.width


def _draw_entry(page: Axes, entry: Entry, x: float, y: float) -> None:
    corner = 0.03 if len(entry.hues) == 1 else 0.0
    for number, hue in enumerate(entry.hues):
        outlined = entry.striped or entry.dashed
        edge = hue if outlined else "none"
        look: dict[str, Any] = {"fill": style.PAPER if outlined else hue, "edge": edge}
        look |= {"striped": entry.striped, "dashed": entry.dashed}
        marks.box(page, x + number * entry.swatch, y - 0.08, entry.swatch, 0.16, corner=corner, **look)
    x += len(entry.hues) * entry.swatch + (_GAP if entry.hues else 0.0)
    marks.label(page, x, y, entry.text, size=style.SMALL_SIZE, colour=style.SOFT, align="left")
