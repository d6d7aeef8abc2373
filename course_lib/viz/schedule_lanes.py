"""Lanes of a pipeline: a box for each computation, with its micro-batch, on the grey of its rank's idle time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from course_lib.schedules import Slot
from course_lib.viz import style
from course_lib.viz.keys import Entry
from course_lib.viz.schedule_runs import Clock, Run

LEFT = style.MARGIN + 0.8  # inches: rank names
_TOP, _BOTTOM = 0.05, 0.95  # of a lane
_STRIP = 0.8  # of a lane: where the strip of messages begins, if there is one
_APART = 0.2  # inches: the least between two times on the axis
_BESIDE = 0.03  # inches: the least that a box is wider than its number
_KEYS = {"backward input": "backward input B", "backward weight": "backward weight W"}  # the formulas' letters
_PALEST = 0.5  # as far from idle's grey as from the full colour, for colour-blind readers too


def lane_axes(axes: Axes, n_ranks: int, clock: Clock, reach_s: float, *, size: float, last: bool = True) -> None:
    """One lane for each rank, named in letters of `size`; the last of several panels writes the axis that all share."""
    axes.set(xlim=(0, reach_s * clock.factor), ylim=(n_ranks, 0), yticks=[])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=6, labelbottom=last)
    axes.xaxis.set_major_formatter(lambda time, _: f"{time:g}")
    if last:
        axes.set_xlabel(clock.axis, labelpad=6)
    for rank in range(n_ranks):
        _write(axes, 0, rank + 0.5, f"rank {rank}", right=-10, ha="right", size=size)


def mark_end(axes: Axes, clock: Clock, end_s: float, width: float) -> None:
    """When the step ends, on an axis `width` inches wide, in place of the times that have no room beside it."""
    end, text = end_s * clock.factor, clock.says(end_s).partition(" ")[0]
    inches = width / end

    def fits(time: float) -> bool:
        both = sum(style.text_width(word, style.SMALL_SIZE) for word in (f"{time:g}", text))
        return time >= 0 and (end - time) * inches > both / 2 + _APART

    times = [time for time in axes.get_xticks() if fits(time)]
    axes.set_xticks([*times, end], [*(f"{time:g}" for time in times), text])
    axes.get_xticklabels()[-1].set_color(style.INK)


def draw_lanes(axes: Axes, run: Run, clock: Clock, width: float) -> None:
    """Boxes of all computations on axes `width` inches wide, on their ranks' idle time up to the end.

    Where messages take time, each is a strip below its sender's boxes. Micro-batches are numbered on the kinds of
    boxes in which all numbers fit.
    """
    for rank in range(run.schedule.n_ranks):
        lane = (0, rank + _TOP), run.end_s * clock.factor, _BOTTOM - _TOP
        axes.add_patch(Rectangle(*lane, facecolor=style.IDLE, linewidth=0, zorder=1))
    bottom = _STRIP if run.sent else _BOTTOM
    inches = width / axes.get_xlim()[1] * clock.factor
    widest = max(style.text_width(str(m), style.SMALL_SIZE) for m in range(run.schedule.n_microbatches))
    groups: dict[tuple[str, int], list[Slot]] = defaultdict(list)
    for slot in run.computed:
        groups[run.what(slot), run.chunk(slot)].append(slot)
    for (what, chunk), some in groups.items():
        hue = _shade(style.COMPUTE[what], chunk, run.schedule.stages_per_rank)
        narrowest = inches * min(slot.end_s - slot.start_s for slot in run.computed if run.what(slot) == what)
        look = {"facecolor": hue, "edgecolor": style.PAPER, "linewidth": min(0.8, 6 * narrowest)}
        _draw_boxes(axes, some, clock.factor, _TOP, bottom, look)
        if narrowest > widest + _BESIDE:
            _number_boxes(axes, some, clock.factor, (_TOP + bottom) / 2, _text_on(hue))
    look = {"facecolor": style.COMMUNICATION, "edgecolor": style.COMMUNICATION, "linewidth": 0.7}  # seen if short
    _draw_boxes(axes, run.sent, clock.factor, _STRIP, _BOTTOM, look)


def key_of(runs: Sequence[Run]) -> list[Entry]:
    """All that occurs; of a rank with several stages a swatch for each, from its first to its last."""
    shades: dict[str, int] = {}
    for run in runs:
        for what in map(run.what, run.computed):
            shades[what] = max(shades.get(what, 0), run.schedule.stages_per_rank)
    entries = [
        Entry(_KEYS.get(what, what), [_shade(hue, k, shades[what]) for k in range(shades[what])])
        for what, hue in style.COMPUTE.items()
        if what in shades
    ]
    entries.append(Entry("idle", [style.IDLE]))
    if any(run.sent for run in runs):
        entries.append(Entry("message", [style.COMMUNICATION]))
    if max(shades.values()) > 1:
        entries.append(Entry("paler: a rank's later stage"))
    return entries


def _shade(colour: str, chunk: int, chunks: int) -> str:
    return style.tint(colour, 1 - (1 - _PALEST) * chunk / max(1, chunks - 1))


def _text_on(colour: str) -> str:
    """Black for ink: on backward's colour its contrast is 5.4, that of ink 3.9."""
    return "#000000" if style.text_on(colour) == style.INK else style.text_on(colour)


def _write(axes: Axes, x: float, y: float, text: str, *, right: float = 0.0, size: float, **look: Any) -> None:
    """Text some points beside a place of the axes, its capitals centred on it."""
    look = {"va": "baseline", "annotation_clip": False, "size": size, "zorder": 5, **look}
    place = (right, -72 * style.HALF_CAP * size)
    axes.annotate(text, (x, y), xytext=place, textcoords="offset points", **look)


def _draw_boxes(
    axes: Axes, slots: Sequence[Slot], factor: float, top: float, bottom: float, look: dict[str, Any]
) -> None:
    """All boxes of one look as one shape, which keeps the picture small."""
    corners: list[tuple[float, float]] = []
    for slot in slots:
        left, right, above, below = slot.start_s * factor, slot.end_s * factor, slot.rank + top, slot.rank + bottom
        corners += [(left, above), (right, above), (right, below), (left, below), (left, above)]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(slots)
    if slots:
        axes.add_patch(PathPatch(Path(corners, codes), zorder=2, **look))


def _number_boxes(axes: Axes, slots: Sequence[Slot], factor: float, middle: float, colour: str) -> None:
    for slot in slots:
        at = (slot.start_s + slot.end_s) / 2 * factor, slot.rank + middle
        text = str(slot.instruction.microbatch)
        _write(axes, *at, text, ha="center", size=style.SMALL_SIZE, color=colour)
