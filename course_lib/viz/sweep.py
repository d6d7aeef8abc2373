"""A time axis on a canvas, and a line that sweeps along it: what is still to come is pale."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from course_lib.viz import style
from course_lib.viz.canvas import SMALL, Canvas, text_width

_PALE = 0.82
_BEGINS_S, _SWEEPS_S, _STAYS_S = 1.0, 9.0, 4.0
LOOP_S = _BEGINS_S + _SWEEPS_S + _STAYS_S
_MOST_TICKS = 9


class Sweep(NamedTuple):
    """Times from 0 to `reach` on the pixels from `left` to `right`."""

    left: float
    right: float
    reach: float

    def x(self, time: float) -> float:
        """Where a time lies."""
        return self.left + (self.right - self.left) * time / self.reach

    def passes(self, time: float) -> float:
        """When in the loop the line reaches a time."""
        return _BEGINS_S + _SWEEPS_S * time / self.reach


def draw_sweep(canvas: Canvas, sweep: Sweep, top: float, bottom: float) -> None:
    """The veil over what is to come, with the line at its edge; both are gone at the end."""
    wide = sweep.right - sweep.left
    begins, ends = sweep.passes(0), sweep.passes(sweep.reach)
    veil = canvas.moving(
        (0, f"opacity:{_PALE};transform:scaleX(1)"),
        (begins, f"opacity:{_PALE};transform:scaleX(1)"),
        (ends, f"opacity:{_PALE};transform:scaleX(0)"),
        (ends + 0.1, "opacity:0;transform:scaleX(0)"),
    )
    line = canvas.moving(
        (0, f"opacity:1;transform:translateX({-wide:g}px)"),
        (begins, f"opacity:1;transform:translateX({-wide:g}px)"),
        (ends, "opacity:1;transform:translateX(0px)"),
        (ends + 0.4, "opacity:0;transform:translateX(0px)"),
    )
    group = canvas.group(transform=f"translate({sweep.right:g},{top:g})")
    canvas.box(-wide, 0, wide, bottom - top, motion=veil, parent=group, opacity=0)
    canvas.box(-0.75, 0, 1.5, bottom - top, fill=style.INK, motion=line, parent=group, opacity=0)


def draw_axis(canvas: Canvas, sweep: Sweep, y: float, label: str) -> None:
    """Round times below the lanes, and below them the unit."""
    step = next(size * ten for ten in (10**n for n in count(-3)) for size in (1, 2, 5) if _fits(sweep, size * ten))
    for number in range(int(sweep.reach / step + 1e-9) + 1):
        canvas.text(sweep.x(number * step), y, f"{number * step:g}", size=SMALL, colour=style.SOFT, align="middle")
    canvas.text((sweep.left + sweep.right) / 2, y + 21, label, size=SMALL, colour=style.SOFT, align="middle")


def _fits(sweep: Sweep, step: float) -> bool:
    room = (sweep.right - sweep.left) * step / sweep.reach
    return sweep.reach / step <= _MOST_TICKS and room > text_width(f"{sweep.reach:g}", SMALL) + 12
