"""The triangle of causal attention, coloured by the ranks that have the queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.sequence_cut import SequenceCut
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, Canvas, rectangles, text_on, text_width

BESIDE = 54.0  # pixels left of the triangle and above it: positions, and the ranks that have them
_STRIP, _GAP = 24.0, 3.0  # of the ranks' names; from them to the triangle
_FINE = 8.0  # cells smaller than this are drawn without lines between them
_NAMED = 15.0  # the shortest run that has room for its rank's name
_APART = 23.0  # from one position that is written to the next, at least


@dataclass(frozen=True)
class Triangle:
    """Queries down and keys across, `side` pixels of each; `left` and `top` are those of its first cell."""

    cut: SequenceCut
    left: float
    top: float
    side: float

    @property
    def cell(self) -> float:
        return self.side / self.cut.length

    def draw(self, canvas: Canvas) -> None:
        """What each rank computes, what the mask hides, and the owners of queries and keys along two sides."""
        canvas.box(self.left, self.top, self.side, self.side, fill=style.PANEL)
        for rank in range(self.cut.size):
            rows = [
                (self.left, self.top + query * self.cell, (query + 1) * self.cell, self.cell)
                for query in self.cut.positions(rank)
            ]
            canvas.path(rectangles(rows), fill=style.rank_hue(rank))
        if self.cell >= _FINE:
            self._draw_lines(canvas)
        x, y = self.left + 0.66 * self.side, self.top + 0.17 * self.side
        canvas.text(x, y, "later keys: masked", size=SMALL, colour=style.SOFT, align="middle")
        self._draw_owners(canvas)
        self._write_positions(canvas)

    def _draw_lines(self, canvas: Canvas) -> None:
        """Between cells, as far as something is computed there."""
        places = range(1, self.cut.length)
        across = [(self.left, self.top + n * self.cell - 0.5, (n + 1) * self.cell, 1.0) for n in places]
        down = [
            (self.left + n * self.cell - 0.5, self.top + n * self.cell, 1.0, self.side - n * self.cell) for n in places
        ]
        canvas.path(rectangles([*across, *down]), fill=style.PAPER)

    def _draw_owners(self, canvas: Canvas) -> None:
        """A stretch in the rank's hue for each run of positions, on both sides."""
        offset = _GAP + _STRIP
        for rank in range(self.cut.size):
            hue = style.rank_hue(rank)
            for run in self.cut.runs(rank):
                start, long = run.start * self.cell, len(run) * self.cell
                sides = (
                    (self.left + start, self.top - offset, long - 1, _STRIP),
                    (self.left - offset, self.top + start, _STRIP, long - 1),
                )
                canvas.path(rectangles(sides), fill=hue)
                if long >= _NAMED:
                    for x, y, wide, tall in sides:
                        look: dict[str, Any] = {"size": SMALL, "bold": True, "align": "middle", "colour": text_on(hue)}
                        canvas.text(x + wide / 2, y + tall / 2, str(rank), **look)

    def _write_positions(self, canvas: Canvas) -> None:
        step = next(2**power for power in range(16) if 2**power * self.cell >= self._room(2**power))
        for position in range(0, self.cut.length, step):
            middle = (position + 0.5) * self.cell
            look: dict[str, Any] = {"size": SMALL, "colour": style.SOFT}
            canvas.text(self.left + middle, self.top - BESIDE + 14, str(position), align="middle", **look)
            canvas.text(self.left - _GAP - _STRIP - 6, self.top + middle, str(position), align="end", **look)

    def _room(self, step: int) -> float:
        """What the widest position needs."""
        return max(text_width(str(self.cut.length - 1), SMALL) + 3, _APART if step > 1 else 16.0)
