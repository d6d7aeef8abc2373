"""The few shapes that all diagrams are made of: rank badges, chunks of a tensor, arrows.

Units: inches from the top left corner of the page, as `sheet.new_page` lays it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path

from course_lib.viz.ink import style

_CORNER = 0.06
_STRIPES, _STRIPE = 1 / 30, 0.8  # from one to the next along the page; points across one


def box(
    page: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    fill: str = style.PAPER,
    edge: str = "none",
    line: float = 1.0,
    corner: float = _CORNER,
    dashed: bool = False,
    striped: bool = False,
    zorder: float = 1.0,
) -> FancyBboxPatch:
    """A rectangle with rounded corners; `x`, `y` is its top left one. Stripes are in the colour of its edge."""
    patch = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle=f"round,pad=0,rounding_size={corner}",
        facecolor=fill,
        edgecolor=edge,
        linewidth=line,
        linestyle=(0, (3, 2)) if dashed else "-",
        zorder=zorder,
        clip_on=False,
    )
    page.add_artist(patch)
    if striped:
        stripes = _stripes(x, y, width, height)
        look = {"facecolor": "none", "edgecolor": edge, "linewidth": _STRIPE, "zorder": zorder, "clip_on": False}
        page.add_artist(PathPatch(stripes, **look))
    return patch


def _stripes(x: float, y: float, width: float, height: float) -> Path:
    """Lines up to the right across a rectangle. Of matplotlib's own hatch a browser prints an image for each box."""
    ends, right, bottom = [], x + width, y + height
    for number in range(ceil((x + y) / _STRIPES), ceil((right + bottom) / _STRIPES)):
        along = number * _STRIPES  # x + y of a stripe's points, so that those of two boxes lie on one line
        first, last = max(x, along - bottom), min(right, along - y)
        ends += [(first, along - first), (last, along - last)]
    return Path(ends, [Path.MOVETO, Path.LINETO] * (len(ends) // 2))


def label(
    page: Axes,
    x: float,
    y: float,
    text: str,
    *,
    size: float = style.BASE_SIZE,
    colour: str = style.INK,
    bold: bool = False,
    align: str = "center",
    code: bool = False,
    zorder: float = 5.0,
) -> None:
    """A line of text, vertically centred on `y`; `code` sets it as a cell would."""
    look: dict[str, Any] = {"size": size, "color": colour, "ha": align, "va": "baseline", "zorder": zorder}
    if code:
        look["family"] = "DejaVu Sans Mono"  # comes with matplotlib
    else:
        look["weight"] = 600 if bold else 400
    page.text(x, y + style.HALF_CAP * size, text, **look)


def rank_badge(
    page: Axes, x: float, y: float, rank: int, *, width: float = 0.74, height: float = 0.34, word: bool = True
) -> None:
    """A pill in the rank's hue with its name, centred on `x`, `y`."""
    hue = style.rank_hue(rank)
    box(page, x - width / 2, y - height / 2, width, height, fill=hue, corner=min(width, height) / 2, zorder=4)
    text = f"rank {rank}" if word else str(rank)
    label(page, x, y, text, size=style.SMALL_SIZE, colour=style.text_on(hue), bold=True)


def chunk(
    page: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    sources: Sequence[int],
    slots: int = 1,
    text: str = "",
    line: float = 0.9,
    edge: str = style.FAINT,
    zorder: float = 1.0,
) -> None:
    """One chunk: the hue of the rank it came from, or, with a slot for each of several ranks, a stack of hues.

    An unfilled slot shows which rank's part a sum still lacks.
    """
    hues = [style.rank_hue(rank) for rank in sources]
    if slots == 1 or not hues:
        fill = hues[0] if hues else style.PANEL
        box(page, x, y, width, height, fill=fill, edge="none" if hues else edge, line=line, zorder=zorder)
        label(page, x + width / 2, y + height / 2, text, colour=style.text_on(fill), bold=True)
        return
    strip = 0.25 if text and width < 0.6 else 0.0  # no room for a name on top of the stack: put it below
    fill = style.PAPER if strip else style.PANEL
    ground = box(page, x, y, width, height, fill=fill, edge="none", zorder=zorder)
    layer = (height - strip) / slots
    for slot, hue in zip(range(slots) if len(hues) == slots else sources, hues, strict=True):
        stripe = Rectangle((x, y + slot * layer), width, layer, facecolor=hue, zorder=zorder + 0.1)
        page.add_artist(stripe)
        stripe.set_clip_path(ground)
    box(page, x, y, width, height, fill="none", edge=edge, line=line, zorder=zorder + 0.2)
    middle = y + height - strip / 2 if strip else y + height / 2
    if text and not strip:
        box(page, x + width / 2 - 0.22, middle - 0.135, 0.44, 0.27, corner=0.135, zorder=zorder + 0.3)
    label(page, x + width / 2, middle, text, bold=True)


def arrow(
    page: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    colour: str = style.COMMUNICATION,
    line: float = 2.0,
    zorder: float = 3.0,
) -> None:
    """A straight arrow."""
    arrow_along(page, [start, end], colour=colour, line=line, zorder=zorder)


def arrow_along(
    page: Axes,
    points: Sequence[tuple[float, float]],
    *,
    colour: str = style.COMMUNICATION,
    line: float = 2.0,
    zorder: float = 3.0,
) -> None:
    """An arrow along a line of points; its head grows a little with the width of its line."""
    head = 3.4 + 1.3 * line
    page.add_artist(
        FancyArrowPatch(
            path=Path(points),
            arrowstyle=f"-|>,head_length={head},head_width={head / 2}",
            shrinkA=0,
            shrinkB=0,
            color=colour,
            linewidth=line,
            mutation_scale=1.0,
            capstyle="butt",
            joinstyle="miter",
            zorder=zorder,
            clip_on=False,
        )
    )
