"""Lanes of a pipeline: a box for each computation, with its micro-batch, on the grey of its rank's idle time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from course_lib.schedules import Slot
from course_lib.viz import charts, style
from course_lib.viz.keys import Entry
from course_lib.viz.lanes import Span, draw_ground, draw_spans, prepare_lanes, write_texts
from course_lib.viz.schedule_runs import Clock, Run

LEFT = style.MARGIN + 0.8  # inches: rank names
_TOP, _BOTTOM = 0.05, 0.95  # of a lane
_STRIP = 0.8  # of a lane: where the strip of messages begins, if there is one
_APART = 0.2  # inches: the least between two times on the axis
_BESIDE = 0.03  # inches: the least that a box is wider than its number
_AROUND = 0.08  # inches: the least that a wait is wider than what is written on it
_KEYS = {"backward input": "backward input B", "backward weight": "backward weight W"}  # the formulas' letters
_PALEST = 0.5  # as far from idle's grey as from the full colour, for colour-blind readers too


def lane_axes(axes: Axes, n_ranks: int, clock: Clock, reach_s: float, *, size: float, last: bool = True) -> None:
    """One lane for each rank, named in letters of `size`; the last of several panels writes the axis that all share."""
    names = [f"rank {rank}" for rank in range(n_ranks)]
    prepare_lanes(axes, names, reach_s * clock.factor, clock.axis if last else "", gap=10, size=size, zorder=5)
    axes.xaxis.set_major_formatter(lambda time, _: f"{time:g}")


def mark_end(axes: Axes, clock: Clock, end_s: float, width: float) -> None:
    """When the step ends, on an axis `width` inches wide, in place of the times that have no room beside it."""
    end, text = end_s * clock.factor, clock.says(end_s).partition(" ")[0]
    inches, reach = width / axes.get_xlim()[1], axes.get_xlim()[1]

    def fits(time: float) -> bool:
        both = sum(style.text_width(word, style.SMALL_SIZE) for word in (f"{time:g}", text))
        return 0 <= time <= reach and abs(end - time) * inches > both / 2 + _APART

    times = [time for time in axes.get_xticks() if fits(time)]
    axes.set_xticks([*times, end], [*(f"{time:g}" for time in times), text])
    axes.get_xticklabels()[-1].set_color(style.INK)
    axes.set_xlim(0, reach)


def mark_before(axes: Axes, clock: Clock, end_s: float) -> None:
    """When the step ended that was drawn before this one: a dashed line through all lanes, named above them."""
    x = end_s * clock.factor
    axes.axvline(x, color=style.INK, linewidth=1.4, linestyle=(0, (3, 2)), zorder=6)
    axes.text(x, -0.12, f"before: {clock.says(end_s)}", ha="center", va="bottom", size=style.SMALL_SIZE)


def draw_lanes(axes: Axes, run: Run, clock: Clock, width: float) -> None:
    """Boxes of all computations on axes `width` inches wide, on their ranks' idle time up to the end.

    Where messages take time, each is a strip below its sender's boxes. Micro-batches are numbered on the kinds of
    boxes in which all numbers fit.
    """
    draw_ground(axes, run.schedule.n_ranks, run.end_s * clock.factor, (_TOP, _BOTTOM), style.IDLE)
    place = (_TOP, _STRIP if run.sent else _BOTTOM)
    inches = width / axes.get_xlim()[1]
    groups: dict[tuple[str, int], list[Slot]] = defaultdict(list)
    for slot in run.computed:
        groups[run.what(slot), run.chunk(slot)].append(slot)
    for (what, chunk), some in groups.items():
        hue = shade(style.COMPUTE[what], chunk, run.schedule.stages_per_rank)
        spans = [_span(slot, what) for slot in some]
        narrowest = inches * clock.factor * min(span.end_s - span.start_s for span in spans)
        look = {"facecolor": hue, "edgecolor": style.PAPER, "linewidth": min(0.8, 6 * narrowest)}
        draw_spans(axes, spans, clock.factor, place, **look)
        write_texts(axes, spans, clock.factor, place, inches, room=_BESIDE, colour=_text_on(hue))
    _write_gaps(axes, run, clock, inches)
    look = {"facecolor": style.COMMUNICATION, "edgecolor": style.COMMUNICATION, "linewidth": 0.7}  # seen if short
    draw_spans(axes, [_span(slot, "message") for slot in run.sent], clock.factor, (_STRIP, _BOTTOM), **look)


def _write_gaps(axes: Axes, run: Run, clock: Clock, inches: float) -> None:
    """On each wait of a rank how long it is, if there is room; never a bare number, as micro-batches have."""
    look: dict[str, Any] = {"size": style.SMALL_SIZE, "color": style.INK, "ha": "center", "zorder": 5}
    for gap in run.gaps:
        length = clock.says(gap.end_s - gap.start_s)
        room = (gap.end_s - gap.start_s) * clock.factor * inches - _AROUND
        fitting = [text for text in (f"bubble {length}", length) if style.text_width(text, style.SMALL_SIZE) < room]
        if fitting:
            middle = (gap.start_s + gap.end_s) / 2 * clock.factor
            charts.write(axes, middle, gap.rank + (_TOP + _BOTTOM) / 2, fitting[0], within="data", **look)


def _span(slot: Slot, what: str) -> Span:
    return Span(slot.rank, what, slot.start_s, slot.end_s, str(slot.instruction.microbatch))


def key_of(runs: Sequence[Run]) -> list[Entry]:
    """All that occurs; of a rank with several stages a swatch for each, from its first to its last."""
    shades: dict[str, int] = {}
    for run in runs:
        for what in map(run.what, run.computed):
            shades[what] = max(shades.get(what, 0), run.schedule.stages_per_rank)
    entries = [
        Entry(_KEYS.get(what, what), [shade(hue, k, shades[what]) for k in range(shades[what])])
        for what, hue in style.COMPUTE.items()
        if what in shades
    ]
    entries.append(Entry("idle", [style.IDLE]))
    if any(run.sent for run in runs):
        entries.append(Entry("message", [style.COMMUNICATION]))
    if max(shades.values()) > 1:
        entries.append(Entry("paler: a rank's later stage"))
    return entries


def shade(colour: str, chunk: int, chunks: int) -> str:
    """The colour of a computation at one of its rank's stages: paler from the first to the last."""
    return style.tint(colour, 1 - (1 - _PALEST) * chunk / max(1, chunks - 1))


def _text_on(colour: str) -> str:
    """Black for ink: on backward's colour its contrast is 5.4, that of ink 3.9."""
    return "#000000" if style.text_on(colour) == style.INK else style.text_on(colour)
