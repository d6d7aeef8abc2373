"""The verification ladder as it was climbed: on each rung how far the ranks were from one device."""

from __future__ import annotations

import math
from collections.abc import Mapping

from course_lib.errors import four_parts
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture

_ROW, _NAMES, _RIGHT = 0.44, 2.6, 1.5  # inches: a rung, what it compares, the verdict
_AFTER_NUMBER = 0.22  # inches from a rung's number to its name, since digits differ in width
_APART_BY, _POWERS_BY = 1.0, 0.8  # inches between the middles of what is written below the rungs, of two powers
_LEAST = 1e-17  # below any rounding: where a deviation of 0 is drawn
EQUAL, APART = "#00703C", style.WRONG


@sheet.course_style()
def plot_ladder(deviations: Mapping[str, float], *, tolerance: float, title: str = "") -> Picture:
    """A rung for each entry of a ladder's `deviations`, from the foot up, against the `tolerance` that it held.

    A deviation is the largest difference from one device over its largest number.
    Raises: ValueError for no rungs, or a tolerance that is not positive.
    """
    if not deviations or not tolerance > 0:
        values, rule = f"{len(deviations)} rungs, tolerance={tolerance}", "there is a rung, and something it may be off"
        raise ValueError(four_parts("plot_ladder", values, rule, "give a report's deviations and its tolerance"))
    failed = [name for name, off in deviations.items() if not off <= tolerance]
    title = title or ("The ranks are not one device" if failed else "On every rung equal to one device")
    subtitle = "largest difference from one device over its largest number; log scale; read from the foot up"
    top, tall = style.HEADER + 0.3, len(deviations) * _ROW
    figure, page = sheet.new_page(top + tall + 0.72, title, subtitle)
    left, width = style.MARGIN + _NAMES, style.PAGE_WIDTH - 2 * style.MARGIN - _NAMES - _RIGHT
    first, last = math.log10(_LEAST), math.ceil(math.log10(max(tolerance, *deviations.values()))) + 1

    def place(off: float) -> float:
        return left + width * (math.log10(max(off, _LEAST)) - first) / (last - first)

    page.plot([left, left], [top - 0.1, top + tall], color=style.FAINT, linewidth=3)
    below, written = top + tall + 0.24, left
    for x, power in ((place(10.0**power), power) for power in range(round(first) + 2, last, 2)):
        page.plot([x, x], [top - 0.1, top + tall], color=style.FAINT, linewidth=0.8, zorder=0)
        if min(x - left, abs(x - place(tolerance))) > _APART_BY and x - written > _POWERS_BY:
            written = x
            marks.label(page, x, below, f"{10.0**power:.0e}", size=style.SMALL_SIZE, colour=style.SOFT)
    page.plot([place(tolerance)] * 2, [top - 0.1, top + tall], color=style.INK, linewidth=1.6, linestyle=(0, (3, 2)))
    for number, (name, off) in enumerate(reversed([*deviations.items()])):
        y, hue = top + (number + 0.5) * _ROW, EQUAL if off <= tolerance else APART
        for x, words in ((style.MARGIN, str(len(deviations) - number)), (style.MARGIN + _AFTER_NUMBER, name)):
            marks.label(page, x, y, words, align="left")
        page.plot([left, place(off)], [y, y], color=style.tint(hue, 0.35), linewidth=5, solid_capstyle="butt")
        page.plot([place(off)], [y], "o", color=hue, markersize=9)
        words = f"{'equal' if off <= tolerance else 'apart'}, {f'{off:.0e}' if off else '0'}"
        marks.label(page, style.PAGE_WIDTH - style.MARGIN, y, words, align="right", colour=hue, bold=True)
    marks.label(page, place(tolerance), below, f"tolerance {tolerance:.0e}", size=style.SMALL_SIZE, colour=style.SOFT)
    marks.label(page, left, below, f"≤ {_LEAST:.0e}", size=style.SMALL_SIZE, colour=style.SOFT)
    lines = [f"  {name}: {off:.1e}, {'equal' if off <= tolerance else 'apart'}" for name, off in deviations.items()]
    description = "\n".join([f"{subtitle}; tolerance {tolerance:.0e}", *lines])
    return Picture(figure, title=title, description=description, kinds=["measured"])
