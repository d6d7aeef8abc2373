"""Who holds which part of each tensor: a layout's table as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.viz import marks, style
from course_lib.viz.holdings import check_picture_size
from course_lib.viz.picture import Picture

Region = tuple[float, float, float, float]  # of a whole tensor: first and last row, first and last column, from 0 to 1
_MOST_ROWS = 24

_NAMES, _ROW, _TALL, _GAP, _LINE = 2.75, 0.38, 0.28, 0.1, 0.27  # inches: names, a row, a tensor, between ranks, text


@style.course_style()
def plot_layout(
    regions: Mapping[str, Sequence[Region | None]],
    places: Sequence[Mapping[str, int]],
    *,
    title: str = "Who holds what",
) -> Picture:
    """A row for each tensor and a column for each rank; what a rank holds of the whole has the rank's colour.

    `regions` are those of `Layout.regions`, all or some; `places` are the ranks' coordinates, as `coordinates` lists
    them.
    Raises: ValueError for more than 8 ranks or 24 tensors.
    """
    ranks = len(places)
    check_picture_size("plot_layout", ranks)
    if len(regions) > _MOST_ROWS:
        values, rule = f"{len(regions)} tensors", f"this picture holds {_MOST_ROWS}"
        raise ValueError(four_parts("plot_layout", values, rule, "give some of the regions: layers are alike"))
    axes = [axis for axis in places[0] if len({place[axis] for place in places}) > 1]
    cell = min(1.5, (style.PAGE_WIDTH - 2 * style.MARGIN - _NAMES) / ranks)
    left, top = style.MARGIN + _NAMES, style.HEADER + 0.5 + _LINE * len(axes)
    subtitle = "a box is the whole tensor; coloured is what the rank holds of it"
    figure, page = style.new_page(top + len(regions) * _ROW + 0.3, title, subtitle)
    for rank, place in enumerate(places):
        middle = left + (rank + 0.5) * cell - _GAP / 2
        marks.rank_badge(page, middle, style.HEADER + 0.12, rank)
        for line, axis in enumerate(axes):
            y = style.HEADER + 0.47 + _LINE * line
            marks.label(page, middle, y, str(place[axis]), size=style.SMALL_SIZE, colour=style.SOFT)
            if rank == 0:
                marks.label(page, left - 0.15, y, axis, size=style.SMALL_SIZE, colour=style.SOFT, align="right")
    for row, (name, parts) in enumerate(regions.items()):
        y = top + row * _ROW
        marks.label(page, style.MARGIN, y + _TALL / 2, name.removesuffix(".weight"), align="left")
        for rank, region in enumerate(parts):
            _draw_part(page, left + rank * cell, y, cell - _GAP, rank, region)
    return Picture(figure, title=title, description=_in_words(regions, places, axes))


def _draw_part(page: Axes, x: float, y: float, wide: float, rank: int, region: Region | None) -> None:
    """The whole tensor as an outline, the rank's part of it filled."""
    marks.box(page, x, y, wide, _TALL, fill=style.PANEL, edge=style.FAINT, corner=0)
    if region is not None:
        first, last, start, end = region
        corner = x + start * wide, y + first * _TALL
        marks.box(page, *corner, (end - start) * wide, (last - first) * _TALL, fill=style.rank_hue(rank), corner=0)


def _in_words(
    regions: Mapping[str, Sequence[Region | None]], places: Sequence[Mapping[str, int]], axes: Sequence[str]
) -> str:
    """Every tensor with each rank's share."""
    at = [" ".join(f"{axis} {place[axis]}" for axis in axes) for place in places]
    lines = ["ranks: " + ", ".join(f"{rank} ({text})" for rank, text in enumerate(at))]
    for name, parts in regions.items():
        lines.append(f"  {name}: " + ", ".join(f"rank {rank} {_share(part)}" for rank, part in enumerate(parts)))
    return "\n".join(lines)


def _share(region: Region | None) -> str:
    """All, nothing, or which rows and columns."""
    if region is None:
        return "nothing"
    first, last, start, end = region
    parts = [] if (first, last) == (0, 1) else [f"rows {first:.0%} to {last:.0%}"]
    parts += [] if (start, end) == (0, 1) else [f"columns {start:.0%} to {end:.0%}"]
    return " and ".join(parts) or "all"
