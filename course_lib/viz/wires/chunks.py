"""Pictures of the primitives: which rank holds which chunk before and after."""

from __future__ import annotations

from matplotlib.axes import Axes

from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import MEANINGS, OPERATIONS, Chunk, Holdings, check_picture_size, holdings

_KEY = "colour = the rank that a chunk came from"


@sheet.course_style()
def who_holds_what(operation: str, world_size: int = 4) -> Picture:
    """The chunks on every rank before and after `operation`; one row is one rank, one hue its data.

    Raises: ValueError for an unknown operation or more than 8 ranks.
    """
    before, after = holdings(operation, world_size)
    row = 0.62 if world_size <= 4 else 0.5
    names, between, gap = 1.0, 1.1, 0.08
    cell = min(1.2, ((style.PAGE_WIDTH - 2 * style.MARGIN - names - between) / 2 + gap) / world_size)
    wide = cell * world_size - gap
    top = style.HEADER + 0.42
    title = f"{operation}: {MEANINGS[operation]}"
    adds = world_size > 1 and any(len(chunk.sources) > 1 for held in after for chunk in held)
    figure, page = sheet.new_page(
        top + world_size * row + 0.36, title, _KEY + ("; Σ = the sum over all ranks" if adds else "")
    )
    left = style.MARGIN + names
    right = left + wide + between
    for rank in range(world_size):
        marks.rank_badge(page, style.MARGIN + 0.37, top + (rank + 0.5) * row - gap / 2, rank)
    for x, word, held in ((left, "before", before), (right, "after", after)):
        marks.label(page, x + wide / 2, top - 0.22, word, colour=style.SOFT)
        _table(page, held, x, top, cell, row, gap=gap, named=True)
    middle = top + (world_size * row - gap) / 2
    marks.arrow(page, (left + wide + 0.25, middle), (right - 0.25, middle), line=3.0)
    return Picture(figure, title=title, description=_in_words(before, after))


@sheet.course_style()
def all_reduce_halves(world_size: int = 4) -> Picture:
    """An all-reduce in its two halves: before, when each rank owns one finished chunk, and when all have all.

    Raises: ValueError for more than 4 ranks.
    """
    check_picture_size("all_reduce_halves", world_size, largest=4)
    before, owned = holdings("reduce_scatter", world_size)
    _, after = holdings("all_reduce", world_size)
    names, between, gap, row = 1.0, 0.86, 0.06, 0.72
    wide = (style.PAGE_WIDTH - 2 * style.MARGIN - names - 2 * between) / 3
    cell, top = (wide + gap) / world_size, style.HEADER + 0.42
    title = "All-reduce in two halves"
    figure, page = sheet.new_page(top + world_size * row + 0.72, title, f"{_KEY}; Σ = the sum over all ranks")
    for rank in range(world_size):
        marks.rank_badge(page, style.MARGIN + 0.37, top + (rank + 0.5) * row - gap / 2, rank)
    middle, below = top + (world_size * row - gap) / 2, top + world_size * row + 0.26
    stages = (("before", before), ("in the middle", owned), ("after", after))
    for number, (word, held) in enumerate(stages):
        x = style.MARGIN + names + number * (wide + between)
        marks.label(page, x + wide / 2, top - 0.22, word, colour=style.SOFT)
        _table(page, held, x, top, cell, row, gap=gap, named=True)
        if number:
            marks.arrow(page, (x - between + 0.16, middle), (x - 0.16, middle), line=3.0)
            half = ("", "first half: add up", "second half: hand around")[number]
            marks.label(page, x - between / 2, below, half, bold=True)
    words = [f"{word}:\n{_rows(held)}" for word, held in stages]
    return Picture(figure, title=title, description="\n".join(words))


@sheet.course_style()
def primitives_overview() -> Picture:
    """The eight primitives on four ranks, in one slide: the upper row moves data, the lower row also adds."""
    ranks, cell, across = 4, 0.215, (style.PAGE_WIDTH - 2 * style.MARGIN + 0.3) / 4
    subtitle = "before → after;  row = rank;  number = chunk;  colour = whose it was;  stripes = a column's sum"
    figure, page = sheet.new_page(5.625, "Eight ways to move a tensor between four ranks", subtitle)
    words = []
    for number, operation in enumerate(OPERATIONS):
        down, right = divmod(number, 4)
        x, y = style.MARGIN + right * across, 1.42 + down * 2.1
        before, after = holdings(operation, ranks)
        marks.label(page, x, y, operation, bold=True, align="left")
        _table(page, before, x, y + 0.26, cell, 0.32, gap=0.025)
        _table(page, after, x + 1.14, y + 0.26, cell, 0.32, gap=0.025)
        middle = y + 0.26 + ranks * 0.32 / 2
        marks.arrow(page, (x + ranks * cell + 0.04, middle), (x + 1.1, middle), line=1.6)
        words.append(f"{operation}: {MEANINGS[operation]}\n{_in_words(before, after)}")
    return Picture(figure, title="Eight ways to move a tensor between four ranks", description="\n".join(words))


def _table(
    page: Axes, held: Holdings, x: float, y: float, cell: float, row: float, *, gap: float, named: bool = False
) -> None:
    """Chunks as a table of ranks (rows) and places (columns)."""
    for rank, chunks in enumerate(held):
        for place, chunk in enumerate(chunks):
            marks.chunk(
                page,
                x + place * cell,
                y + rank * row,
                cell - gap,
                row - gap,
                sources=chunk.sources,
                slots=max(1, len(chunk.sources)),
                text=_name(chunk, named),
            )


def _name(chunk: Chunk, named: bool) -> str:
    """The full name, or where there is no room the index alone; a sum's place says its index."""
    if not chunk.sources:
        return ""
    return chunk.name if named else str(chunk.number) if len(chunk.sources) == 1 else ""


def _in_words(before: Holdings, after: Holdings) -> str:
    """The same table as text."""
    lines = []
    for word, held in (("before", before), ("after", after)):
        lines += [f"{word}:", _rows(held)]
    ranks = range(len(before))
    if any(len(chunk.sources) > 1 for chunks in after for chunk in chunks):
        lines.append("Σ0 = " + " + ".join(f"{chr(ord('A') + rank)}0" for rank in ranks))
    return "\n".join(lines)


def _rows(held: Holdings) -> str:
    """A line for each rank: the names of what it holds."""
    return "\n".join(f"  rank {rank}: {' '.join(chunk.name for chunk in chunks)}" for rank, chunks in enumerate(held))
