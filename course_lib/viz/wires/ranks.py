"""One notebook and its ranks: where a cell runs, and where its variables live."""

from __future__ import annotations

from matplotlib.axes import Axes

from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import check_picture_size


@sheet.course_style()
def plot_ranks(world_size: int = 4) -> Picture:
    """A notebook sends one cell to all ranks; each runs it in its own memory, and the outputs come back.

    Raises: ValueError for more than 8 ranks.
    """
    check_picture_size("plot_ranks", world_size)
    title = f"One cell, {world_size} processes" if world_size > 1 else "One cell, one process"
    subtitle = "every rank runs the same code in its own memory; what another rank knows must be sent"
    pitch = 0.86 if world_size <= 4 else 0.56
    top, tall = style.HEADER + 0.42, max(world_size * pitch, 2.2)
    figure, page = sheet.new_page(top + tall + 0.42, title, subtitle)
    middle = top + tall / 2
    for x, word in ((style.MARGIN, "your notebook"), (4.15, "ranks"), (7.45, "what you read")):
        marks.label(page, x, top - 0.22, word, colour=style.SOFT, align="left")
    _draw_cell(page, middle, world_size)
    rows = [middle + (rank - (world_size - 1) / 2) * pitch for rank in range(world_size)]
    for rank, y in enumerate(rows):
        marks.arrow(page, (3.02, middle), (4.08, y), line=1.8)
        _draw_rank(page, 4.15, y, rank, min(0.62, pitch - 0.1))
        marks.arrow(page, (6.57, y), (7.38, y), line=1.8)
        marks.box(page, 7.45, y - 0.2, 2.13, 0.4, fill=style.PANEL)
        marks.label(page, 7.62, y, f"rank {rank} → {20 + rank}", align="left", code=True)
    words = [f"the notebook sends the cell `x = 20 + rank` to {world_size} ranks; every rank has its own x:"]
    words += [f"  rank {rank} holds x = {20 + rank} and answers {20 + rank}" for rank in range(world_size)]
    return Picture(figure, title=title, description="\n".join(words))


def _draw_cell(page: Axes, middle: float, world_size: int) -> None:
    """The cell as it stands in the notebook."""
    left, width, tall = style.MARGIN, 2.55, 1.5
    top = middle - tall / 2
    marks.box(page, left, top, width, tall, fill=style.PANEL, edge=style.FAINT, corner=0.1)
    lines = (f"%%ranks {world_size}", "x = 20 + rank", "x")
    for i, text in enumerate(lines):
        colour = style.COMMUNICATION if i == 0 else style.INK
        marks.label(page, left + 0.22, top + 0.36 + 0.39 * i, text, colour=colour, align="left", code=True)


def _draw_rank(page: Axes, x: float, y: float, rank: int, tall: float) -> None:
    """A process with its memory."""
    marks.box(page, x, y - tall / 2, 2.36, tall, edge=style.rank_hue(rank), line=2.2, corner=0.1)
    marks.rank_badge(page, x + 0.55, y, rank)
    marks.label(page, x + 1.14, y, f"x = {20 + rank}", align="left", code=True)
