"""How much of all attention each rank computes, as bars against a fair share."""

from __future__ import annotations

from typing import Any

from course_lib.sequence_cut import SequenceCut
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis
from course_lib.viz.ink.bars import draw_outline, draw_parts
from course_lib.viz.ink.canvas import SMALL, Canvas

PITCH = 38.0  # pixels from one rank to the next
ABOVE, BELOW = 26.0, 30.0  # above the bars, for the fair share's name; below them, for the slowest rank
_BAR, _NAMES, _NUMBERS = 22.0, 74.0, 146.0
_REACH = 2.0  # of a fair share: twice as much is more than any rank of a causal mask can have


def shares(cut: SequenceCut) -> list[float]:
    """By rank, its part of all pairs of a query and a key.

    >>> [round(share, 2) for share in shares(SequenceCut(16, 4))]
    [0.07, 0.19, 0.31, 0.43]
    """
    pairs = [cut.work(rank) for rank in range(cut.size)]
    return [count / sum(pairs) for count in pairs]


def percent(share: float, size: int) -> str:
    """Whole ones, but where a fair share of `size` ranks is none.

    >>> percent(0.426, 4), percent(0.125, 8)
    ('43%', '12.5%')
    """
    return f"{share:.1%}" if 100 % size else f"{share:.0%}"


def slowest(cut: SequenceCut) -> str:
    """How many fair shares the rank with the most work has.

    >>> slowest(SequenceCut(16, 4)), slowest(SequenceCut(16, 4, "zigzag"))
    ('1.71', '1.00')
    """
    return f"{max(shares(cut)) * cut.size:.2f}"


def draw_work(
    canvas: Canvas, cut: SequenceCut, left: float, top: float, width: float, before: SequenceCut | None = None
) -> None:
    """A bar for each rank from `top` on, the fair share as a line; an outline is what the rank had before."""
    axis = Axis(left + _NAMES, left + width - _NUMBERS, _REACH)
    old = shares(before) if before else []
    first = top + ABOVE
    for rank, share in enumerate(shares(cut)):
        y = first + (rank + 0.5) * PITCH
        canvas.rank(left + 31, y, rank)
        ground = axis.right - axis.left
        canvas.box(axis.left, y - _BAR / 2, ground, _BAR, fill=style.PANEL)
        draw_parts(canvas, axis, y - _BAR / 2, _BAR, [(share * cut.size, style.rank_hue(rank))])
        canvas.text(axis.right + 58, y, percent(share, cut.size), bold=True, align="end")
        pairs = f"{cut.work(rank):,}" + " pairs" * (rank == 0)
        canvas.text(axis.right + 68, y, pairs, size=SMALL, colour=style.SOFT)
    _draw_fair(canvas, axis, first, cut.size)
    for rank, share in enumerate(old[: cut.size]):
        y = first + (rank + 0.5) * PITCH
        draw_outline(canvas, axis, y - _BAR / 2, _BAR, share * len(old))
    foot = first + cut.size * PITCH + BELOW / 2
    canvas.text(left, foot, f"the slowest rank has {slowest(cut)} × a fair share", size=SMALL)
    if before:
        canvas.text(left, foot + 24, "in dashes: what each had before", size=SMALL, colour=style.SOFT)


def _draw_fair(canvas: Canvas, axis: Axis, top: float, size: int) -> None:
    """A line that is set off from the bars, and its name above."""
    x, tall = axis.x(1.0), size * PITCH
    canvas.path(f"M{x:g} {top:g}v{tall:g}", stroke=style.PAPER, stroke_width=5, fill="none")
    look: dict[str, Any] = {"stroke": style.INK, "stroke_width": 1.8, "stroke_dasharray": "6 4", "fill": "none"}
    canvas.path(f"M{x:g} {top:g}v{tall:g}", **look)
    canvas.text(x, top - ABOVE / 2, f"fair share: {percent(1 / size, size)}", size=SMALL, align="middle")
