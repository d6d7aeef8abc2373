"""Who holds which part of each tensor: a layout's table as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import check_picture_size

Region = tuple[float, float, float, float]  # of a whole tensor: first and last row, first and last column, from 0 to 1
_Box = tuple[float, float, float, float]  # inches: left and top edge, width and height
_MOST_ROWS = 24

_NAMES, _GAP, _LINE = 3.6, 0.1, 0.27  # inches: names and shapes, between ranks, text
_MATRIX, _VECTOR, _BETWEEN = 0.4, 0.1, 0.12  # inches: how tall they are, and what is free below each
_TEXT = 0.24  # a line of it, if a vector is less tall
_BADGE = 0.74  # inches: a badge with the word "rank"
_FEW, _SQUARE = 8, 0.2  # where no tensor has more rows or columns each number is a square, so many inches wide


@sheet.course_style()
def plot_layout(
    regions: Mapping[str, Sequence[Sequence[Region]]],
    shapes: Mapping[str, Sequence[int]],
    places: Sequence[Mapping[str, int]],
    *,
    title: str = "Who holds what",
) -> Picture:
    """A row for each tensor and a column for each rank; what a rank holds of the whole has the rank's colour.

    `regions` are those of `Layout.regions`, all or some, and `shapes` those of the whole tensors: a vector is a strip
    from left to right. `places` are the ranks' coordinates, as `coordinates` lists them, and are written out for
    several axes. If all tensors are small, every number is a square.
    Raises: ValueError for more than 8 ranks or 24 tensors.
    """
    ranks = len(places)
    check_picture_size("plot_layout", ranks)
    if len(regions) > _MOST_ROWS:
        values, rule = f"{len(regions)} tensors", f"this picture holds {_MOST_ROWS}"
        raise ValueError(four_parts("plot_layout", values, rule, "give some of the regions: layers are alike"))
    axes = [axis for axis in places[0] if len({place[axis] for place in places}) > 1]
    axes = axes if len(axes) > 1 else []
    cell = min(1.5, (style.PAGE_WIDTH - 2 * style.MARGIN - _NAMES) / ranks)
    most = max(max(shapes[name], default=1) for name in regions)
    squares = most <= min(_FEW, (cell - _GAP) / _SQUARE)
    boxes = {name: _size(shapes[name], cell - _GAP, squares) for name in regions}
    left, top = style.MARGIN + _NAMES, style.HEADER + 0.5 + _LINE * len(axes)
    subtitle = "a box is the whole tensor; coloured is what the rank holds of it; "
    subtitle += "a square is a number" if squares else "boxes are not to scale"
    below = sum(max(tall, _TEXT) + _BETWEEN for _, tall in boxes.values())
    figure, page = sheet.new_page(top + below + 0.2, title, subtitle)
    _name_ranks(page, places, axes, left, cell)
    y = top
    for name, parts in regions.items():
        wide, tall = boxes[name]
        height = max(tall, _TEXT)
        middle, shape = y + height / 2, " × ".join(map(str, shapes[name]))
        marks.label(page, style.MARGIN, middle, name.removesuffix(".weight"), align="left")
        marks.label(page, left - 0.15, middle, shape, size=style.SMALL_SIZE, colour=style.SOFT, align="right")
        for rank, part in enumerate(parts):
            box = left + rank * cell + (cell - _GAP - wide) / 2, middle - tall / 2, wide, tall
            _draw_part(page, box, rank, [_lengthwise(one) for one in part] if len(shapes[name]) == 1 else part)
            if squares:
                _draw_squares(page, box)
        y += height + _BETWEEN
    return Picture(figure, title=title, description=_in_words(regions, shapes, places, axes))


def _size(shape: Sequence[int], room: float, squares: bool) -> tuple[float, float]:
    """Inches: how wide and how tall a tensor's box is."""
    if squares:
        rows, columns = shape if len(shape) == 2 else (1, *shape)
        return columns * _SQUARE, rows * _SQUARE
    return room, _VECTOR if len(shape) == 1 else _MATRIX


def _lengthwise(region: Region) -> Region:
    """A vector's stretch from left to right."""
    first, last, start, end = region
    return start, end, first, last


def _name_ranks(page: Axes, places: Sequence[Mapping[str, int]], axes: Sequence[str], left: float, cell: float) -> None:
    """The ranks' badges, and below them their coordinates; in narrow columns a badge has its number alone."""
    top, wide = style.HEADER + 0.12, min(_BADGE, cell - _GAP)
    if wide < _BADGE:
        marks.label(page, left - 0.15, top, "rank", size=style.SMALL_SIZE, colour=style.SOFT, align="right")
    for rank, place in enumerate(places):
        middle = left + (rank + 0.5) * cell - _GAP / 2
        marks.rank_badge(page, middle, top, rank, width=wide, word=wide == _BADGE)
        for line, axis in enumerate(axes):
            y = style.HEADER + 0.47 + _LINE * line
            marks.label(page, middle, y, str(place[axis]), size=style.SMALL_SIZE, colour=style.SOFT)
            if rank == 0:
                marks.label(page, left - 0.15, y, axis, size=style.SMALL_SIZE, colour=style.SOFT, align="right")


def _draw_part(page: Axes, box: _Box, rank: int, part: Sequence[Region]) -> None:
    """The whole tensor as an outline at `box`, the rank's part of it filled."""
    x, y, wide, tall = box
    marks.box(page, x, y, wide, tall, fill=style.PANEL, edge=style.FAINT, corner=0)
    for first, last, start, end in part:
        corner = x + start * wide, y + first * tall
        marks.box(page, *corner, (end - start) * wide, (last - first) * tall, fill=style.rank_hue(rank), corner=0)


def _draw_squares(page: Axes, box: _Box) -> None:
    """Thin lines between the numbers."""
    x, y, wide, tall = box
    look: dict[str, Any] = {"color": style.PAPER, "linewidth": 1.2, "zorder": 2}
    for number in range(1, round(wide / _SQUARE)):
        page.plot([x + number * _SQUARE] * 2, [y, y + tall], **look)
    for number in range(1, round(tall / _SQUARE)):
        page.plot([x, x + wide], [y + number * _SQUARE] * 2, **look)


def _in_words(
    regions: Mapping[str, Sequence[Sequence[Region]]],
    shapes: Mapping[str, Sequence[int]],
    places: Sequence[Mapping[str, int]],
    axes: Sequence[str],
) -> str:
    """Every tensor with each rank's share."""
    lines = []
    if axes:
        at = [" ".join(f"{axis} {place[axis]}" for axis in axes) for place in places]
        lines.append("ranks: " + ", ".join(f"{rank} ({text})" for rank, text in enumerate(at)))
    for name, parts in regions.items():
        shape = " × ".join(map(str, shapes[name]))
        lines.append(
            f"  {name} ({shape}): " + ", ".join(f"rank {rank} {_share(part)}" for rank, part in enumerate(parts))
        )
    return "\n".join(lines)


def _share(part: Sequence[Region]) -> str:
    """All, nothing, or which rows and columns."""
    found = []
    for first, last, start, end in part:
        spans = [] if (first, last) == (0, 1) else [f"rows {first:.0%} to {last:.0%}"]
        spans += [] if (start, end) == (0, 1) else [f"columns {start:.0%} to {end:.0%}"]
        found.append(" and ".join(spans) or "all")
    return " with ".join(found) or "nothing"
