"""A horizontal axis on a canvas: where values lie, and round ones written below."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, Canvas, text_width

_MOST_TICKS = 9
_APART, _UNIT = 8.0, 21.0  # pixels: the least between two numbers, from them down to their unit


class Axis(NamedTuple):
    """Values from 0 to `reach` on the pixels from `left` to `right`."""

    left: float
    right: float
    reach: float

    def x(self, value: float) -> float:
        """Where a value lies."""
        return self.left + (self.right - self.left) * value / self.reach

    def ticks(self) -> list[float]:
        """Round values, as many as have room for their numbers."""
        sizes = (size * 10.0**power for power in count(-3) for size in (1, 2, 5))
        step = next(size for size in sizes if self._fits(size))
        return [number * step for number in range(int(self.reach / step + 1e-9) + 1)]

    def _fits(self, step: float) -> bool:
        room = (self.right - self.left) * step / self.reach
        return self.reach / step <= _MOST_TICKS and room > text_width(f"{self.reach:g}", SMALL) + 12


def draw_axis(canvas: Canvas, axis: Axis, y: float, label: str, end: tuple[float, str] | None = None) -> None:
    """The ticks' numbers, and below them the unit.

    An `end`, which is a value and its words, is written in place of the ticks that have no room beside it.
    """
    written = [(tick, f"{tick:,.6g}") for tick in axis.ticks()]
    if end:
        written = [one for one in written if _beside(axis, one, end)]
        canvas.text(axis.x(end[0]), y, end[1], size=SMALL, align="middle", bold=True)
    for value, words in written:
        canvas.text(axis.x(value), y, words, size=SMALL, colour=style.SOFT, align="middle")
    canvas.text((axis.left + axis.right) / 2, y + _UNIT, label, size=SMALL, colour=style.SOFT, align="middle")


def _beside(axis: Axis, one: tuple[float, str], other: tuple[float, str]) -> bool:
    halves = (text_width(one[1], SMALL) + text_width(other[1], SMALL, bold=True)) / 2
    return abs(axis.x(one[0]) - axis.x(other[0])) > halves + _APART
