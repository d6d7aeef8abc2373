"""Bytes from every rank to every rank, as a table that is also a heat map."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.comm.ledger import Ledger
from course_lib.errors import four_parts
from course_lib.units import format_bytes
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import check_picture_size

_NAMES, _SUMS, _GAP = 1.3, 1.5, 0.06  # inches: sender names, row sums, between cells
_STRONGER = "; stronger colour = more bytes"

_Table = Sequence[Sequence[int]]  # by sender, by receiver


@sheet.course_style()
def plot_bytes_matrix(
    ledger: Ledger, *, title: str = "Bytes from each rank to each rank", darkest: int | None = None
) -> Picture:
    """Sender rows and receiver columns of a recorded run, with the sums; a darker cell carries more bytes.

    Tables that stand side by side share one scale: `darkest` is the bytes of a full cell, or else this table's largest.

    Raises: ValueError for more than 8 ranks.
    """
    check_picture_size("plot_bytes_matrix", ledger.world_size)
    table = ledger.matrix()
    figure = _draw_matrix(table, title, _subtitle(ledger), darkest)
    said = [_subtitle(ledger).replace(_STRONGER, ""), *_in_words(table)]
    return Picture(figure, title=title, description="\n".join(said), kinds=["measured"])


@sheet.course_style()
def plot_all_to_all(
    table: Sequence[Sequence[int]],
    *,
    kind: Kind = "formula",
    title: str = "An all-to-all: bytes from each rank to each rank",
    darkest: int | None = None,
) -> Picture:
    """The bytes that rank i has for rank j in row i and column j; what it has for itself stays and is not sent.

    Transposed it is the way back. `darkest` is as for `plot_bytes_matrix`.
    Raises: ValueError for more than 8 ranks, or a table that is no square of numbers of bytes.
    """
    check_picture_size("plot_all_to_all", len(table))
    if any(len(row) != len(table) for row in table) or min(map(min, table)) < 0:
        values, rule = f"rows of {', '.join(str(len(row)) for row in table)}", "each rank has bytes for each rank"
        raise ValueError(four_parts("plot_all_to_all", values, rule, "pass a square of numbers that are 0 or more"))
    stays = [row[rank] for rank, row in enumerate(table)]
    sent = [[0 if to == rank else nbytes for to, nbytes in enumerate(row)] for rank, row in enumerate(table)]
    subtitle = f"stronger colour = more bytes{'; the diagonal stays where it is' * any(stays)}"
    figure = _draw_matrix(sent, title, subtitle, darkest, stays if any(stays) else ())
    said = ["who sends how much to whom", *_in_words(sent)]
    if any(stays):
        own = ", ".join(f"rank {rank} {format_bytes(nbytes)}" for rank, nbytes in enumerate(stays))
        said.append(f"  stays where it is: {own}")
    return Picture(figure, title=title, description="\n".join(said), kinds=[kind])


def _draw_matrix(table: _Table, title: str, subtitle: str, darkest: int | None, stays: Sequence[int] = ()) -> Figure:
    """Rows of what was sent, with the sums of rows and columns; `stays` is written on the diagonal, and not counted."""
    ranks = len(table)
    cell = min(1.36, (style.PAGE_WIDTH - 2 * style.MARGIN - _NAMES - _SUMS) / ranks)
    row = 0.6
    left, top = style.MARGIN + _NAMES, style.HEADER + 0.52
    figure, page = sheet.new_page(top + (ranks + 1) * row + 0.4, title, subtitle)
    full = darkest or max(max(line) for line in table) or 1
    right, bottom = left + ranks * cell, top + ranks * row
    marks.label(page, style.MARGIN, top - 0.24, "from ↓ to →", colour=style.SOFT, align="left")
    for rank in range(ranks):
        across, down = left + (rank + 0.5) * cell - _GAP / 2, top + (rank + 0.5) * row - _GAP / 2
        marks.rank_badge(page, style.MARGIN + 0.37, down, rank)
        marks.rank_badge(page, across, top - 0.24, rank)
        marks.label(page, right + 0.75, down, format_bytes(sum(table[rank])), bold=True)
        received = sum(line[rank] for line in table)
        _write_bytes(page, across, bottom + row / 2, cell, received, bold=True)
        for column, nbytes in enumerate(table[rank]):
            x, y = left + column * cell, top + rank * row
            if stays and column == rank:
                _draw_stay(page, x, y, cell, row, stays[rank])
            else:
                _draw_cell(page, x, y, cell, row, nbytes, min(1, nbytes / full))
    marks.label(page, right + 0.75, top - 0.24, "sent", colour=style.SOFT)
    marks.label(page, style.MARGIN, bottom + row / 2, "received", colour=style.SOFT, align="left")
    total = format_bytes(sum(map(sum, table)))
    marks.label(page, right + 0.75, bottom + row / 2, total, colour=style.SOFT, bold=True)
    return figure


def _draw_cell(page: Axes, x: float, y: float, cell: float, row: float, nbytes: int, share: float) -> None:
    """Shaded from pale to slate by the cell's share of a full one."""
    fill = style.tint(style.COMMUNICATION, 0.15 + 0.85 * share) if nbytes else style.PANEL
    marks.box(page, x, y, cell - _GAP, row - _GAP, fill=fill)
    colour = style.text_on(fill) if nbytes else style.SOFT
    _write_bytes(page, x + (cell - _GAP) / 2, y + (row - _GAP) / 2, cell, nbytes, colour=colour)


def _draw_stay(page: Axes, x: float, y: float, cell: float, row: float, nbytes: int) -> None:
    """What a rank has for itself: an outline, since nothing is sent."""
    marks.box(page, x, y, cell - _GAP, row - _GAP, fill=style.PAPER, edge=style.FAINT, dashed=True)
    _write_bytes(page, x + (cell - _GAP) / 2, y + (row - _GAP) / 2, cell, nbytes, colour=style.SOFT)


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
    return f"{messages} messages recorded{_STRONGER}{hidden}"


def _in_words(table: _Table) -> list[str]:
    """Every non-empty cell, and the sums."""
    lines = []
    for rank, row in enumerate(table):
        cells = [f"{format_bytes(nbytes)} to rank {to}" for to, nbytes in enumerate(row) if nbytes]
        lines.append(f"  rank {rank} sends {format_bytes(sum(row))}" + (f": {', '.join(cells)}" if cells else ""))
    received = [format_bytes(sum(row[rank] for row in table)) for rank in range(len(table))]
    lines.append("  received: " + ", ".join(f"rank {rank} {text}" for rank, text in enumerate(received)))
    lines.append(f"  all together: {format_bytes(sum(map(sum, table)))}")
    return lines
