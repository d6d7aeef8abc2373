"""What a figure shows, worn quietly in its corner: a formula's numbers, emulated times, or what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Circle, Wedge

from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.kinds import Kind

_HIGH, _PAD, _DOT, _APART = 0.27, 0.13, 0.055, 0.1  # inches; of a dot its radius
_BESIDE, _ABOVE = 0.5, 0.235  # inches from the page's top: on the title's line, or over it


def draw_badges(page: Axes, title: str, kinds: Sequence[Kind]) -> None:
    """A pill for each kind in the page's upper right corner: beside the title, or above one that leaves no room.

    Its dot is open for a formula, half full for emulated times, full for what was measured.
    """
    right = page.get_xlim()[1] - style.MARGIN
    widths = [_width(kind) for kind in kinds]
    left = right - sum(widths) - _APART * (len(kinds) - 1)
    room = style.MARGIN + sheet.text_width(title, style.TITLE_SIZE, 600) + 2 * _APART < left
    for kind, width in zip(kinds, widths, strict=True):
        _draw_badge(page, left, _BESIDE if room else _ABOVE, width, kind)
        left += width + _APART


def _width(kind: Kind) -> float:
    return 2 * _PAD + 2 * _DOT + 0.07 + sheet.text_width(kind, style.SMALL_SIZE)


def _draw_badge(page: Axes, left: float, y: float, width: float, kind: Kind) -> None:
    marks.box(page, left, y - _HIGH / 2, width, _HIGH, fill="none", edge=style.FAINT, corner=_HIGH / 2)
    centre = (left + _PAD + _DOT, y)
    page.add_patch(Circle(centre, _DOT, facecolor="none", edgecolor=style.SOFT, linewidth=1.1, zorder=2))
    if kind != "formula":
        ends = (90, 270) if kind == "emulated" else (0, 360)
        page.add_patch(Wedge(centre, _DOT, *ends, facecolor=style.SOFT, linewidth=0, zorder=3))
    at = left + _PAD + 2 * _DOT + 0.07
    marks.label(page, at, y, kind, size=style.SMALL_SIZE, colour=style.SOFT, align="left")
