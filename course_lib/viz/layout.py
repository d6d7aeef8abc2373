"""Who holds which part of each tensor: a layout's table as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.viz import marks, style
from course_lib.viz.holdings import check_picture_size
from course_lib.viz.picture import Picture

Region = tuple[float, float, float, float]  # of a whole tensor: first and last row, first and last column, from 0 to 1
_Box = tuple[float, float, float, float]  # inches: left and top edge, width and height
_MOST_ROWS = 24

_NAMES, _GAP, _LINE = 3.6, 0.1, 0.27  # inches: names and shapes, between ranks, text
_MATRIX, _VECTOR, _BETWEEN = 0.4, 0.1, 0.12  # inches: how tall they are, and what is free below each
_TEXT = 0.24  # a line of it, if a vector is less tall


@style.course_style()
def plot_layout(
    regions: Mapping[str, Sequence[Region | None]],
    shapes: Mapping[str, Sequence[int]],
    places: Sequence[Mapping[str, int]],
    *,
    title: str = "Who holds what",
) -> Picture:
    """A row for each tensor and a column for each rank; what a rank holds of the whole has the rank's colour.

    `regions` are those of `Layout.regions`, all or some, and `shapes` those of the whole tensors: a vector is a thin
    strip. `places` are the ranks' coordinates, as `coordinates` lists them, and are written out for several axes.
    Raises: ValueError for more than 8 ranks or 24 tensors.
    """
    ranks = len(places)
    check_picture_size("plot_layout", ranks)
    if len(regions) > _MOST_ROWS:
        values, rule = f"{len(regions)} tensors", f"this picture holds {_MOST_ROWS}"
        raise ValueError(four_parts("plot_layout", values, rule, "give some of the regions: layers are alike"))
    axes = [axis for axis in places[0] if len({place[axis] for place in places}) > 1]
    axes = axes if len(axes) > 1 else []
    tall = {name: _VECTOR if len(shapes[name]) == 1 else _MATRIX for name in regions}
    cell = min(1.5, (style.PAGE_WIDTH - 2 * style.MARGIN - _NAMES) / ranks)
    left, top = style.MARGIN + _NAMES, style.HEADER + 0.5 + _LINE * len(axes)
    subtitle = "a box is the whole tensor; coloured is what the rank holds of it; boxes are not to scale"
    figure, page = style.new_page(top + sum(max(one, _TEXT) + _BETWEEN for one in tall.values()) + 0.2, title, subtitle)
    _name_ranks(page, places, axes, left, cell)
    y = top
    for name, parts in regions.items():
        height = max(tall[name], _TEXT)
        middle, shape = y + height / 2, " × ".join(map(str, shapes[name]))
        marks.label(page, style.MARGIN, middle, name.removesuffix(".weight"), align="left")
        marks.label(page, left - 0.15, middle, shape, size=style.SMALL_SIZE, colour=style.SOFT, align="right")
        for rank, region in enumerate(parts):
            box = left + rank * cell, middle - tall[name] / 2, cell - _GAP, tall[name]
            _draw_part(page, box, rank, region)
        y += height + _BETWEEN
    return Picture(figure, title=title, description=_in_words(regions, shapes, places, axes))


def _name_ranks(page: Axes, places: Sequence[Mapping[str, int]], axes: Sequence[str], left: float, cell: float) -> None:
    """The ranks' badges, and below them their coordinates."""
    for rank, place in enumerate(places):
        middle = left + (rank + 0.5) * cell - _GAP / 2
        marks.rank_badge(page, middle, style.HEADER + 0.12, rank)
        for line, axis in enumerate(axes):
            y = style.HEADER + 0.47 + _LINE * line
            marks.label(page, middle, y, str(place[axis]), size=style.SMALL_SIZE, colour=style.SOFT)
            if rank == 0:
                marks.label(page, left - 0.15, y, axis, size=style.SMALL_SIZE, colour=style.SOFT, align="right")


def _draw_part(page: Axes, box: _Box, rank: int, region: Region | None) -> None:
    """The whole tensor as an outline at `box`, the rank's part of it filled."""
    x, y, wide, tall = box
    marks.box(page, x, y, wide, tall, fill=style.PANEL, edge=style.FAINT, corner=0)
    if region is not None:
        first, last, start, end = region
        corner = x + start * wide, y + first * tall
        marks.box(page, *corner, (end - start) * wide, (last - first) * tall, fill=style.rank_hue(rank), corner=0)


def _in_words(
    regions: Mapping[str, Sequence[Region | None]],
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


def _share(region: Region | None) -> str:
    """All, nothing, or which rows and columns."""
    if region is None:
        return "nothing"
    first, last, start, end = region
    parts = [] if (first, last) == (0, 1) else [f"rows {first:.0%} to {last:.0%}"]
    parts += [] if (start, end) == (0, 1) else [f"columns {start:.0%} to {end:.0%}"]
    return " and ".join(parts) or "all"
