"""How attention walks over its scores tile by tile: one tile exists at a time, and later keys are never visited."""

from __future__ import annotations

from typing import Any

from course_lib.errors import four_parts
from course_lib.units import format_bytes
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, text_on
from course_lib.viz.ink.drawing import Drawing

_TOP, _SIDE, _BESIDE, _BOTTOM = 128.0, 336.0, 118.0, 30.0  # pixels; the square, and room for names at its left
_RIGHT = WIDE_EDGE + _BESIDE + _SIDE + 46  # where what is kept stands
_MOST = 12
_GONE, _NOW = style.COMPUTE["forward"], style.COMPUTE["backward"]
_FP32 = 4


def plot_tiles(sequence: int = 2048, tile: int = 512, *, now: int | None = None, title: str = "") -> Drawing:
    """The scores of one causal head in tiles, numbered in the order in which they are visited; `now` is the one alive.

    Queries go down and keys across. Beside the square stands what a row of tiles carries from one to the next.
    Raises: ValueError for a tile that does not divide the sequence, more tiles than a page holds, or another `now`.
    """
    rows = sequence // tile if tile > 0 else 0
    if not 1 <= rows <= _MOST or rows * tile != sequence:
        rule, way_out = f"1 to {_MOST} whole tiles stand in a row", "choose another tile"
        raise ValueError(four_parts("plot_tiles", f"sequence={sequence}, tile={tile}", rule, way_out))
    visits = [(row, column) for row in range(rows) for column in range(row + 1)]
    now = len(visits) // 2 if now is None else now
    if now not in range(len(visits)):
        rule, way_out = f"there are {len(visits)} tiles to visit", "count from 0"
        raise ValueError(four_parts("plot_tiles", f"now={now}", rule, way_out))
    title = title or "Attention in tiles: one tile of scores at a time"
    subtitle = f"one head, {sequence:,} positions, tiles of {tile:,} × {tile:,}; numbers are the order of the visits"
    canvas = Canvas(_TOP + _SIDE + _BOTTOM, title, subtitle, width=WIDE, kinds=["formula"])
    _draw_square(canvas, rows, visits, now)
    everything, one = _FP32 * sequence**2, _FP32 * tile**2
    skipped = rows * rows - len(visits)
    sizes = {
        "all scores, in fp32": format_bytes(everything),
        "the tile that exists now": format_bytes(one),
        "tiles that are never visited": f"{skipped} of {rows * rows}",
    }
    for number, (words, size) in enumerate(sizes.items()):
        y = _TOP + 16 + number * 62
        canvas.text(_RIGHT, y, size, bold=True)
        canvas.text(_RIGHT, y + 23, words, size=SMALL, colour=style.SOFT)
    y = _TOP + 16 + len(sizes) * 62 + 14
    canvas.text(_RIGHT, y, "carried along a row, for each query:", size=SMALL)
    for number, words in enumerate(("the output so far", "the sum so far, as a logarithm")):
        canvas.text(_RIGHT + 14, y + 24 * (number + 1), f"· {words}", size=SMALL, colour=style.SOFT)
    row, column = visits[now]
    said = [
        subtitle,
        *(f"  {name}: {size}" for name, size in sizes.items()),
        f"  visit {now + 1} of {len(visits)}: queries of row {row + 1} and keys of column {column + 1}, no others",
        "  carried along a row, for each query: the output so far, and the sum so far, as a logarithm",
    ]
    return Drawing(canvas, title=title, description="\n".join(said), kinds=["formula"])


def _draw_square(canvas: Canvas, rows: int, visits: list[tuple[int, int]], now: int) -> None:
    left, side = WIDE_EDGE + _BESIDE, _SIDE / rows
    canvas.text(left, _TOP - 22, "keys →", size=SMALL, colour=style.SOFT)
    canvas.text(left - 14, _TOP + 12, "queries ↓", size=SMALL, colour=style.SOFT, align="end")
    canvas.box(left, _TOP, _SIDE, _SIDE, fill=style.PANEL)
    if rows > 2:
        canvas.text(
            left + 0.72 * _SIDE, _TOP + 0.14 * _SIDE, "never visited", size=SMALL, colour=style.SOFT, align="middle"
        )
    for number, (row, column) in enumerate(visits):
        x, y = left + column * side, _TOP + row * side
        if number <= now:
            hue = _NOW if number == now else _GONE
            look: dict[str, Any] = {"fill": hue} if number == now else {"fill": hue, "fill_opacity": 0.35}
            canvas.box(x + 1, y + 1, side - 2, side - 2, **look)
        else:
            look = {"fill": "none", "stroke": style.SOFT, "stroke_width": 1.2, "stroke_dasharray": "4 3"}
            canvas.box(x + 2, y + 2, side - 4, side - 4, **look)
        colour = text_on(_NOW) if number == now else style.INK
        canvas.text(
            x + side / 2, y + side / 2, str(number + 1), size=SMALL, bold=number == now, align="middle", colour=colour
        )
    y = _TOP + (visits[now][0] + 0.5) * side
    canvas.text(left - 14, y, "these carry", size=SMALL, align="end")
