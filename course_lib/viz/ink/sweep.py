"""A line that sweeps along an axis of time: what is still to come is pale.

Such a picture begins with the rest at its end, so that its first frame shows all.
"""

from __future__ import annotations

from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis
from course_lib.viz.ink.canvas import Canvas

_PALE = 0.82
_BEGINS_S, _SWEEPS_S, _STAYS_S = 1.0, 9.0, 4.0
LOOP_S = _BEGINS_S + _SWEEPS_S + _STAYS_S
FIRST_S = LOOP_S - 2.0  # where in the loop such a picture begins


class Sweep(Axis):
    """An axis of time, along which the line goes once in each loop."""

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
