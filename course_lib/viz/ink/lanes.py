"""Lanes of time: what ran when, whoever recorded it, as bars on a line for each rank.

A ledger's events, a schedule's slots and the calls of one rank's network all become spans; the views (timeline,
overlap, schedule_lanes) say which, in which colours, and what stands beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from course_lib.viz.ink import charts, sheet, style

Place = tuple[float, float]  # in a lane: where a bar begins and ends; 0 is the lane's top, 1 its bottom


class Span(NamedTuple):
    """A stretch of time on a lane: what happened, and what is written on it."""

    lane: int
    what: str
    start_s: float
    end_s: float
    text: str = ""


def prepare_lanes(
    axes: Axes, names: Sequence[str], reach: float, label: str, *, gap: float, pad: float = 6, **look: Any
) -> None:
    """A lane for each name, from the top on, `gap` points left of its beginning, as wide as `reach`.

    Without a label for the axis of time, another panel writes it.
    """
    axes.set(xlim=(0, reach), ylim=(len(names), 0), yticks=[])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=pad, labelbottom=bool(label))
    if label:
        axes.set_xlabel(label, labelpad=6)
    for lane, name in enumerate(names):
        charts.write(axes, 0, lane + 0.5, name, right=-gap, ha="right", within="data", **look)


def draw_ground(axes: Axes, lanes: int, end: float, place: Place, colour: str) -> None:
    """What is seen of each lane where nothing runs."""
    for lane in range(lanes):
        axes.add_patch(
            Rectangle((0, lane + place[0]), end, place[1] - place[0], facecolor=colour, linewidth=0, zorder=1)
        )


def draw_spans(axes: Axes, spans: Sequence[Span], factor: float, place: Place, **look: Any) -> None:
    """All spans of one look as one shape, which keeps the picture small; `factor` makes the axis' unit of seconds."""
    corners: list[tuple[float, float]] = []
    for span in spans:
        left, right = span.start_s * factor, span.end_s * factor
        top, bottom = span.lane + place[0], span.lane + place[1]
        corners += [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(spans)
    if spans:
        axes.add_patch(PathPatch(Path(corners, codes), zorder=2, **look))


def write_texts(
    axes: Axes, spans: Sequence[Span], factor: float, place: Place, inches: float, *, room: float, colour: str
) -> None:
    """What is written on the spans, if all of it fits; one of the axis' units is `inches` wide."""
    widest = max((sheet.text_width(span.text, style.SMALL_SIZE) for span in spans), default=0.0)
    look: dict[str, Any] = {"size": style.SMALL_SIZE, "color": colour, "ha": "center", "zorder": 5}
    if all((span.end_s - span.start_s) * factor * inches > widest + room for span in spans):
        for span in spans:
            at = (span.start_s + span.end_s) / 2 * factor, span.lane + sum(place) / 2
            charts.write(axes, *at, span.text, within="data", **look)
