"""A table in which each rank's queries meet each rank's keys, as the ranks hold them."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.sequence_cut import SequenceCut, Tile
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, Canvas, rectangles, text_on
from course_lib.viz.sequence.rounds import Meeting

_LEFT, _TOP, _SIDE, _GAP = 448.0, 172.0, 232.0, 4.0
_LARGE = 40.0  # a cell that has room for words


@dataclass(frozen=True)
class Table:
    """Rows are the ranks' queries, columns their keys."""

    cut: SequenceCut
    left: float = _LEFT
    top: float = _TOP

    @property
    def cell(self) -> float:
        return _SIDE / max(self.cut.size, 2)

    @property
    def right(self) -> float:
        return self.left + _SIDE

    @property
    def foot(self) -> float:
        return self.top + _SIDE

    def middle(self, rank: int) -> float:
        """Of a rank's row."""
        return self.top + (rank + 0.5) * self.cell - _GAP / 2

    def place(self, meeting: Meeting) -> tuple[float, float]:
        """The left and the top of a cell."""
        return self.left + meeting.source * self.cell, self.top + meeting.rank * self.cell


def draw_headings(canvas: Canvas, table: Table) -> None:
    """Whose queries, whose keys, and the ground of every cell."""
    canvas.text(table.left, table.top - 46, "keys and values of", size=SMALL, colour=style.SOFT)
    canvas.text(table.left - 12, table.top - 19, "queries of", size=SMALL, colour=style.SOFT, align="end")
    size = table.cell - _GAP
    for rank in range(table.cut.size):
        canvas.rank(table.left - 44, table.middle(rank), rank)
        canvas.rank(table.left + (rank + 0.5) * table.cell - _GAP / 2, table.top - 20, rank, word=False)
    cells = [
        (table.left + x * table.cell, table.top + y * table.cell, size, size)
        for y in range(table.cut.size)
        for x in range(table.cut.size)
    ]
    canvas.path(rectangles(cells), fill=style.PANEL)


def draw_cells(canvas: Canvas, table: Table, number: int, step: list[Meeting], appears: str, now: str) -> None:
    """What the ranks compute in a step, with its number; `appears` says how it comes, `now` how it is marked."""
    size = table.cell - _GAP
    group = canvas.group(appears)
    for meeting in step:
        (x, y), hue = table.place(meeting), style.rank_hue(meeting.rank)
        if meeting.blocks:
            d = "".join(_outline(table, meeting, block) for block in meeting.blocks)
            canvas.path(d, fill=hue, parent=group)
            words = str(number + 1) if size > _LARGE else ""
            canvas.text(x + 5, y + size - 9, words, size=13, bold=True, colour=text_on(hue), parent=group)
        else:
            words = "skip" if size > _LARGE else "–"
            middle = (x + size / 2, y + size / 2)
            canvas.text(*middle, words, size=SMALL, colour=style.SOFT, align="middle", parent=group)
    marked = rectangles([(*table.place(meeting), size, size) for meeting in step])
    canvas.path(marked, fill="none", stroke=style.INK, stroke_width=2.2, motion=now, opacity=0)


def _outline(table: Table, meeting: Meeting, block: Tile) -> str:
    """A block where it lies in its cell: a rectangle, or a staircase on the diagonal."""
    (left, top), size = table.place(meeting), table.cell - _GAP
    across, down = size / table.cut.count(meeting.source), size / table.cut.count(meeting.rank)
    x, y = left + block.keys.start * across, top + block.queries.start * down
    columns, rows = block.keys.stop - block.keys.start, block.queries.stop - block.queries.start
    if not block.diagonal:
        return rectangles([(x, y, columns * across, rows * down)])
    return f"M{x:.5g} {y:.5g}{f'h{across:.4g}v{down:.4g}' * rows}H{x:.5g}z"
