"""Bytes from every rank to every rank, as a table that is also a heat map."""

from __future__ import annotations

from matplotlib.axes import Axes

from course_lib.comm.ledger import Ledger
from course_lib.units import format_bytes
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import check_picture_size

_NAMES, _SUMS, _GAP = 1.3, 1.5, 0.06  # inches: sender names, row sums, between cells


@sheet.course_style()
def plot_bytes_matrix(
    ledger: Ledger, *, title: str = "Bytes from each rank to each rank", darkest: int | None = None
) -> Picture:
    """Sender rows and receiver columns of a recorded run, with the sums; a darker cell carries more bytes.

    Tables that stand side by side share one scale: `darkest` is the bytes of a full cell, or else this table's largest.

    Raises: ValueError for more than 8 ranks.
    """
    ranks = ledger.world_size
    check_picture_size("plot_bytes_matrix", ranks)
    table = ledger.matrix()
    cell = min(1.36, (style.PAGE_WIDTH - 2 * style.MARGIN - _NAMES - _SUMS) / ranks)
    row = 0.6
    left, top = style.MARGIN + _NAMES, style.HEADER + 0.52
    figure, page = sheet.new_page(top + (ranks + 1) * row + 0.4, title, _subtitle(ledger))
    full = darkest or max(max(line) for line in table) or 1
    right, bottom = left + ranks * cell, top + ranks * row
    marks.label(page, style.MARGIN, top - 0.24, "from ↓ to →", colour=style.SOFT, align="left")
    for rank in range(ranks):
        across, down = left + (rank + 0.5) * cell - _GAP / 2, top + (rank + 0.5) * row - _GAP / 2
        marks.rank_badge(page, style.MARGIN + 0.37, down, rank)
        marks.rank_badge(page, across, top - 0.24, rank)
        marks.label(page, right + 0.75, down, format_bytes(ledger.bytes_sent(rank)), bold=True)
        received = sum(line[rank] for line in table)
        _write_bytes(page, across, bottom + row / 2, cell, received, bold=True)
        for column, nbytes in enumerate(table[rank]):
            _draw_cell(page, left + column * cell, top + rank * row, cell, row, nbytes, min(1, nbytes / full))
    marks.label(page, right + 0.75, top - 0.24, "sent", colour=style.SOFT)
    marks.label(page, style.MARGIN, bottom + row / 2, "received", colour=style.SOFT, align="left")
    total = format_bytes(sum(map(sum, table)))
    marks.label(page, right + 0.75, bottom + row / 2, total, colour=style.SOFT, bold=True)
    return Picture(figure, title=title, description=_in_words(ledger, table), kinds=["measured"])


def _draw_cell(page: Axes, x: float, y: float, cell: float, row: float, nbytes: int, share: float) -> None:
    """Shaded from pale to slate by the cell's share of a full one."""
    fill = style.tint(style.COMMUNICATION, 0.15 + 0.85 * share) if nbytes else style.PANEL
    marks.box(page, x, y, cell - _GAP, row - _GAP, fill=fill)
    colour = style.text_on(fill) if nbytes else style.SOFT
    _write_bytes(page, x + (cell - _GAP) / 2, y + (row - _GAP) / 2, cell, nbytes, colour=colour)


def _write_bytes(
    page: Axes, x: float, y: float, cell: float, nbytes: int, *, colour: str = style.INK, bold: bool = False
) -> None:
    """Number and unit, on two lines where the cell is narrow."""
    text = format_bytes(nbytes) if nbytes else "–"
    if cell > 1.1 or not nbytes:
        marks.label(page, x, y, text, colour=colour, bold=bold)
        return
    number, unit = text.split()
    marks.label(page, x, y - 0.115, number, size=style.SMALL_SIZE, colour=colour, bold=bold)
    marks.label(page, x, y + 0.125, unit, size=style.SMALL_SIZE, colour=colour, bold=bold)


def _subtitle(ledger: Ledger) -> str:
    messages = sum(ledger.messages(rank) for rank in range(ledger.world_size))
    native = sum(event.kind == "native" for event in ledger.events)
    hidden = f"; not shown: messages inside native calls ({native} events)" if native else ""
    return f"{messages} messages recorded; stronger colour = more bytes{hidden}"


def _in_words(ledger: Ledger, table: list[list[int]]) -> str:
    """Every non-empty cell, and the sums."""
    lines = [_subtitle(ledger).replace("; stronger colour = more bytes", "")]
    for rank, row in enumerate(table):
        cells = [f"{format_bytes(nbytes)} to rank {to}" for to, nbytes in enumerate(row) if nbytes]
        lines.append(f"  rank {rank} sends {format_bytes(sum(row))}" + (f": {', '.join(cells)}" if cells else ""))
    received = [format_bytes(sum(row[rank] for row in table)) for rank in range(ledger.world_size)]
    lines.append("  received: " + ", ".join(f"rank {rank} {text}" for rank, text in enumerate(received)))
    lines.append(f"  all together: {format_bytes(sum(map(sum, table)))}")
    return "\n".join(lines)
