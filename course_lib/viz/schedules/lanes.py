"""Lanes of a pipeline: a box for each computation, with its micro-batch, on the grey of its rank's idle time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from course_lib.schedules import Slot
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis, draw_axis
from course_lib.viz.ink.canvas import SMALL, TEXT, Canvas, rectangles, text_on, text_width
from course_lib.viz.ink.clock import Clock
from course_lib.viz.ink.entries import Entry
from course_lib.viz.schedules.runs import Run

LEFT = 95.0  # right of the ranks' names
TOP, BOTTOM = 0.05, 0.95  # of a lane
_STRIP = 0.8  # of a lane: where the strip of messages begins, if there is one
_SIZES = (SMALL, 12.5)  # of numbers on boxes: the first that fits
_BESIDE, _AROUND = 2.0, 10.0  # pixels: the least that a box is wider than its number, a wait than its length
_GHOST = 4.0  # pixels from the lanes to the outline of the step before
_KEYS = {"backward input": "backward input B", "backward weight": "backward weight W"}  # the formulas' letters
_PALEST = 0.5  # as far from idle's grey as from the full colour, for colour-blind readers too

_Box = tuple[float, float, float, float]  # left, top, width, height


def draw_lanes(
    canvas: Canvas, run: Run, clock: Clock, axis: Axis, top: float, lane: float, *, word: str = "rank"
) -> None:
    """Boxes of all computations on their ranks' idle time up to the end, from `top` on, each lane `lane` tall.

    Where messages take time, each is a strip below its sender's boxes. Micro-batches are numbered on the kinds of
    boxes in which all numbers fit. `axis` is in seconds; `word` is what a lane's number counts.
    """
    size = TEXT if lane > TEXT * 1.6 else SMALL
    for rank in range(run.schedule.n_ranks):
        canvas.text(canvas.edge, top + (rank + 0.5) * lane, f"{word} {rank}", size=size)
    wide = axis.x(run.end_s) - axis.left
    ground = [_box(axis.left, wide, top + rank * lane, lane) for rank in range(run.schedule.n_ranks)]
    canvas.path(rectangles(ground), fill=style.IDLE)
    groups: dict[tuple[str, int], list[Slot]] = defaultdict(list)
    for slot in run.computed:
        groups[run.what(slot), run.chunk(slot)].append(slot)
    sent = run.sent
    for (what, chunk), slots in groups.items():
        hue = shade(style.COMPUTE[what], chunk, run.schedule.stages_per_rank)
        boxes = [_slot_box(axis, slot, top, lane, bottom=_STRIP if sent else BOTTOM) for slot in slots]
        canvas.path(rectangles(boxes), fill=hue, stroke=style.PAPER, stroke_width=min(0.8, boxes[0][2] / 12))
        _number(canvas, boxes, [str(slot.instruction.microbatch) for slot in slots], hue)
    _write_gaps(canvas, run, clock, axis, top, lane)
    strips = [_slot_box(axis, slot, top, lane, _STRIP, BOTTOM) for slot in sent]
    if strips:  # with a line around, so that a short one is seen
        hue = style.COMMUNICATION
        canvas.path(rectangles(strips), fill=hue, stroke=hue, stroke_width=0.7)


def draw_times(canvas: Canvas, clock: Clock, axis: Axis, y: float, end_s: float = 0.0) -> None:
    """An axis in seconds as the clock writes them, and on it when the step ends."""
    end = (end_s * clock.factor, clock.says(end_s).partition(" ")[0]) if end_s else None
    draw_axis(canvas, axis._replace(reach=axis.reach * clock.factor), y, clock.axis, end)


def draw_ghost(canvas: Canvas, clock: Clock, axis: Axis, end_s: float, top: float, bottom: float) -> None:
    """An outline of the step that was drawn before, and above it when that ended; none if the axis ends earlier."""
    if not 0 < end_s <= axis.reach:
        return
    x, words = axis.x(end_s), f"before: {clock.says(end_s)}"
    d = f"M{axis.left:g} {top - _GHOST:g}H{x:.5g}V{bottom + _GHOST:g}H{axis.left:g}"
    canvas.path(d, fill="none", stroke=style.INK, stroke_width=1.4, stroke_dasharray="4 3")
    half = text_width(words, SMALL) / 2
    canvas.text(min(max(x, axis.left + half), axis.right - half), top - 16, words, size=SMALL, align="middle")


def _box(x: float, wide: float, y: float, lane: float, top: float = TOP, bottom: float = BOTTOM) -> _Box:
    return x, y + top * lane, wide, (bottom - top) * lane


def _slot_box(axis: Axis, slot: Slot, y: float, lane: float, top: float = TOP, bottom: float = BOTTOM) -> _Box:
    x = axis.x(slot.start_s)
    return _box(x, axis.x(slot.end_s) - x, y + slot.rank * lane, lane, top, bottom)


def _number(canvas: Canvas, boxes: Sequence[_Box], texts: Sequence[str], hue: str) -> None:
    """The micro-batches of boxes of one look, if all fit."""
    room = min(wide for _, _, wide, _ in boxes) - _BESIDE
    size = next((size for size in _SIZES if max(text_width(text, size) for text in texts) <= room), None)
    if size:
        for (x, y, wide, tall), text in zip(boxes, texts, strict=True):
            canvas.text(x + wide / 2, y + tall / 2, text, size=size, colour=text_on(hue), align="middle")


def _write_gaps(canvas: Canvas, run: Run, clock: Clock, axis: Axis, top: float, lane: float) -> None:
    """On each wait of a rank how long it is, if there is room; never a bare number, as micro-batches have."""
    for gap in run.gaps:
        length = clock.says(gap.end_s - gap.start_s)
        if text_width(length, SMALL) < axis.x(gap.end_s) - axis.x(gap.start_s) - _AROUND:
            middle = axis.x((gap.start_s + gap.end_s) / 2)
            canvas.text(middle, top + (gap.rank + 0.5) * lane, length, size=SMALL, align="middle")


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
    if max(shades.values()) > 1:
        entries.append(Entry("paler: a rank's later stage"))
    entries.append(Entry("idle", [style.IDLE]))
    if any(run.sent for run in runs):
        entries.append(Entry("message", [style.COMMUNICATION]))
    return entries


def shade(colour: str, chunk: int, chunks: int) -> str:
    """The colour of a computation at one of its rank's stages: paler from the first to the last."""
    return style.tint(colour, 1 - (1 - _PALEST) * chunk / max(1, chunks - 1))
