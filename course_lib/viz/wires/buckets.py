"""How gradients are dealt out to flat buckets, the last layers first, and when in backward each bucket is ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from course_lib.errors import four_parts
from course_lib.units import format_bytes
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture

_MOST_PARAMETERS, _MOST_BUCKETS = 16, 6
_LIST, _LINKS, _BLOCK = style.MARGIN + 0.62, 1.05, 1.3  # inches: left of the list, room for links, one bucket
_BAR = 0.42
_GRADIENT = style.COMPUTE["backward"]


class _Layout(NamedTuple):
    """Where the two sides stand, in inches."""

    top: float
    row: float
    list_width: float
    bucket_left: float
    bucket_width: float


@sheet.course_style()
def plot_buckets(
    parameters: Sequence[tuple[str, int]],
    buckets: Sequence[Sequence[str]],
    bucket_bytes: int,
    *,
    title: str = "Gradients travel in buckets, the last layers first",
) -> Picture:
    """The model's parameters, (name, bytes) in the model's order, and the names that lie in each bucket.

    The buckets, each full at `bucket_bytes`, stand in their order; backward reaches the last parameter first. Under
    each bucket are the gradients in backward's order: its own in full colour, those of other buckets grey.
    Raises: ValueError for no parameters or empty ones, more parameters or buckets than a page holds, or buckets that
    do not hold each parameter once.
    """
    dealt = _numbers(parameters, buckets)
    layout = _lay_out(parameters, len(dealt))
    tall = max(len(dealt) * _BLOCK, len(parameters) * layout.row)
    closes = f"a bucket closes at {format_bytes(bucket_bytes)} or more (dashed)"
    subtitle = f"{closes} and travels once it has all its gradients (orange)"
    figure, page = sheet.new_page(layout.top + tall + 0.3, title, subtitle)
    for x, words in (
        (_LIST, "model, counted from the end"),
        (layout.bucket_left, "buckets, in the order of their all-reduces"),
    ):
        marks.label(page, x, layout.top - 0.22, words, size=style.SMALL_SIZE, colour=style.SOFT, align="left")
    _draw_backward(page, layout, len(parameters))
    for number in range(len(parameters)):
        _draw_parameter(page, layout, parameters, number)
    scale = layout.bucket_width / max(sum(parameters[n][1] for n in bucket) for bucket in dealt)
    ready = 0
    for place, bucket in enumerate(dealt):
        ready += len(bucket)
        top = layout.top + place * _BLOCK
        _draw_link(page, layout, bucket, top + 0.3)
        _draw_bucket(page, layout, parameters, bucket, (place, top), scale, bucket_bytes)
        _draw_pips(page, layout, top + 0.3 + _BAR + 0.18, ready, len(bucket), len(parameters))
    return Picture(figure, title=title, description=_in_words(parameters, dealt, subtitle))


def _numbers(parameters: Sequence[tuple[str, int]], buckets: Sequence[Sequence[str]]) -> list[list[int]]:
    """The numbers of the parameters in each bucket."""
    if not 1 <= len(parameters) <= _MOST_PARAMETERS or any(nbytes < 1 for _, nbytes in parameters):
        values = f"{len(parameters)} parameters of {', '.join(str(nbytes) for _, nbytes in parameters) or 'no'} bytes"
        rule = f"this picture holds 1 to {_MOST_PARAMETERS} parameters, none of them empty"
        raise ValueError(four_parts("plot_buckets", values, rule, "draw fewer layers: the pattern is the same"))
    if len(buckets) > _MOST_BUCKETS:
        values, rule = f"{len(buckets)} buckets", f"this picture holds 1 to {_MOST_BUCKETS}"
        raise ValueError(four_parts("plot_buckets", values, rule, "raise bucket_bytes, or draw fewer layers"))
    numbers = {name: number for number, (name, _) in enumerate(parameters)}
    held = sorted(name for bucket in buckets for name in bucket)
    if held != sorted(numbers):
        values, rule = f"the buckets hold {', '.join(held) or 'nothing'}", "each parameter lies in one bucket"
        raise ValueError(four_parts("plot_buckets", values, rule, f"deal out {', '.join(numbers)}"))
    return [[numbers[name] for name in bucket] for bucket in buckets]


def _lay_out(parameters: Sequence[tuple[str, int]], n_buckets: int) -> _Layout:
    names = max(sheet.text_width(f"00  {name}", style.SMALL_SIZE) for name, _ in parameters)
    sizes = max(sheet.text_width(format_bytes(nbytes), style.SMALL_SIZE) for _, nbytes in parameters)
    width = names + sizes + 0.5
    left = _LIST + width + _LINKS
    if style.PAGE_WIDTH - style.MARGIN - left < 3.4:
        longest = max((name for name, _ in parameters), key=len)
        rule = "the names leave room for the buckets"
        raise ValueError(four_parts("plot_buckets", f"parameter {longest!r}", rule, "shorten the names"))
    row = min(max(n_buckets * _BLOCK / len(parameters), 0.34), 0.46)
    return _Layout(style.HEADER + 0.5, row, width, left, style.PAGE_WIDTH - style.MARGIN - left)


def _draw_backward(page: Axes, layout: _Layout, count: int) -> None:
    """Up the left side."""
    x, bottom = style.MARGIN + 0.42, layout.top + count * layout.row - 0.05
    marks.arrow(page, (x, bottom), (x, layout.top), colour=_GRADIENT, line=3.0)
    look: dict[str, Any] = {"size": style.SMALL_SIZE, "weight": 600, "rotation": 90, "ha": "center", "va": "center"}
    page.text(x - 0.24, (layout.top + bottom) / 2, "backward", **look)


def _draw_parameter(page: Axes, layout: _Layout, parameters: Sequence[tuple[str, int]], number: int) -> None:
    name, nbytes = parameters[number]
    y = layout.top + number * layout.row
    marks.box(page, _LIST, y, layout.list_width, layout.row - 0.05, fill=style.PANEL)
    middle, size = y + (layout.row - 0.05) / 2, style.SMALL_SIZE
    marks.label(page, _LIST + 0.28, middle, str(len(parameters) - number), size=size, colour=style.SOFT, align="right")
    marks.label(page, _LIST + 0.38, middle, name, size=size, align="left")
    right = _LIST + layout.list_width - 0.1
    marks.label(page, right, middle, format_bytes(nbytes), size=size, colour=style.SOFT, align="right")


def _draw_link(page: Axes, layout: _Layout, bucket: Sequence[int], bar: float) -> None:
    """A ribbon from the rows of a bucket's parameters to its bar."""
    left, right = _LIST + layout.list_width + 0.04, layout.bucket_left - 0.04
    top, bottom = (layout.top + n * layout.row for n in (min(bucket), max(bucket) + 1))
    middle = (left + right) / 2
    there = [(left, top), (middle, top), (middle, bar), (right, bar)]
    back = [(right, bar + _BAR), (middle, bar + _BAR), (middle, bottom - 0.05), (left, bottom - 0.05)]
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    shape = Path([*there, *back, (left, top)], codes)
    page.add_patch(PathPatch(shape, facecolor=style.COMMUNICATION, alpha=0.16, edgecolor="none", zorder=0.5))


def _draw_bucket(
    page: Axes,
    layout: _Layout,
    parameters: Sequence[tuple[str, int]],
    bucket: Sequence[int],
    at: tuple[int, float],
    scale: float,
    bucket_bytes: int,
) -> None:
    """Its name and size, the gradients that lie in it one after the other, and where it is full."""
    (place, top), x = at, layout.bucket_left
    total = sum(parameters[n][1] for n in bucket)
    bar = top + 0.3
    marks.label(page, x, top + 0.12, f"bucket {place + 1}: {format_bytes(total)}", bold=True, align="left")
    left = x
    for number in bucket:
        name, nbytes = parameters[number]
        width = nbytes * scale
        page.add_patch(
            Rectangle(
                (left, bar),
                width,
                _BAR,
                facecolor=style.tint(_GRADIENT, 0.42),
                edgecolor=style.PAPER,
                linewidth=1.2,
                zorder=1,
            )
        )
        place_in_backward = len(parameters) - number
        for text in (f"{place_in_backward}  {name}", str(place_in_backward)):
            if sheet.text_width(text, style.SMALL_SIZE) + 0.12 < width:
                marks.label(page, left + width / 2, bar + _BAR / 2, text, size=style.SMALL_SIZE)
                break
        left += width
    marks.box(page, x, bar, total * scale, _BAR, fill="none", edge=style.COMMUNICATION, line=1.8, corner=0.02, zorder=2)
    if bucket_bytes * scale <= layout.bucket_width:
        full = x + bucket_bytes * scale
        page.plot([full, full], [bar - 0.05, bar + _BAR + 0.05], color=style.INK, linewidth=1.6, linestyle=(0, (3, 2)))


def _draw_pips(page: Axes, layout: _Layout, y: float, ready: int, own: int, count: int) -> None:
    """A square for every gradient in backward's order: what this bucket waits for, and how far backward then is."""
    text, longest = (f"ready after gradient {number} of {count}" for number in (ready, count))
    room = layout.bucket_width - sheet.text_width(longest, style.SMALL_SIZE) - 0.15
    pitch = min(0.2, room / count)
    for place in range(count):
        fill = _GRADIENT if ready - own <= place < ready else style.FAINT
        marks.box(page, layout.bucket_left + place * pitch, y - 0.08, 0.8 * pitch, 0.16, corner=0.02, fill=fill)
    x = layout.bucket_left + count * pitch + 0.1
    marks.label(page, x, y, text, size=style.SMALL_SIZE, colour=style.SOFT, align="left")


def _in_words(parameters: Sequence[tuple[str, int]], buckets: Sequence[Sequence[int]], subtitle: str) -> str:
    """Every bucket with what lies in it, in order."""
    lines, ready = [subtitle.replace(" (dashed)", "").replace(" (orange)", "")], 0
    for number, bucket in enumerate(buckets, 1):
        ready += len(bucket)
        held = ", ".join(f"{parameters[n][0]} {format_bytes(parameters[n][1])}" for n in bucket)
        total = format_bytes(sum(parameters[n][1] for n in bucket))
        lines.append(f"  bucket {number}: {total}, ready after gradient {ready} of {len(parameters)}: {held}")
    return "\n".join(lines)
