"""Overlap in motion: buckets fill while backward computes, and leave at once or only when it is through."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from course_lib.costs.comm.ddp import DdpTime, ddp_time
from course_lib.errors import four_parts
from course_lib.hardware import Link
from course_lib.units import format_bytes
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis, draw_axis
from course_lib.viz.ink.canvas import EDGE, SMALL, WIDTH, Canvas, text_on, text_width
from course_lib.viz.ink.canvas_key import draw_key
from course_lib.viz.ink.clock import time_unit
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.sweep import FIRST_S, LOOP_S, Sweep, draw_sweep

_LEFT, _TOP, _PANEL, _AXIS = 122.0, 112.0, 152.0, 52.0
_NAME, _LANE, _PITCH, _BAR = 28.0, 34.0, 38.0, 26.0
_LANES = ("compute", "buckets", "network")
_MOST = 12
_LEAVES_S, _GONE_S = 0.45, 0.6  # after a bucket's start: it is in the network's lane, it has become a message
_KEY = [
    Entry("forward", [style.COMPUTE["forward"]]),
    Entry("backward", [style.COMPUTE["backward"]]),
    Entry("communication", [style.COMMUNICATION]),
    Entry("waiting", [style.IDLE]),
    Entry("bucket", [style.SOFT], dashed=True),
]


class _Panel(NamedTuple):
    """One way to run the step."""

    name: str
    overlap: bool
    top: float


def animate_overlap(
    layers: Sequence[Sequence[int]],
    *,
    forward_s: float,
    backward_s: float,
    world_size: int,
    inside: Link,
    bucket_bytes: int,
) -> Drawing:
    """One step of data parallelism, its messages in turn with its computing and while it computes, on one axis.

    Takes what `costs.comm.ddp.ddp_time` takes, whose formula it draws: the lengths of each layer's parameters, and
    the seconds that one layer's passes take.
    Raises: ValueError for no layers or more than 12, or what `ddp_time` refuses.
    """
    if not 1 <= len(layers) <= _MOST:
        rule = f"this picture holds 1 to {_MOST} layers"
        raise ValueError(four_parts("animate_overlap", f"{len(layers)} layers", rule, "draw fewer: the pattern stays"))
    time = ddp_time(
        layers,
        forward_s=forward_s,
        backward_s=backward_s,
        world_size=world_size,
        inside=inside,
        bucket_bytes=bucket_bytes,
    )
    title = "Gradients leave in buckets"
    subtitle = f"{world_size} ranks over {inside.name}, buckets of {format_bytes(bucket_bytes)} or more"
    panels = [_Panel("in turn", False, _TOP), _Panel("overlapped", True, _TOP + _PANEL)]
    factor, unit = time_unit(time.in_turn_s)
    sweep = Sweep(_LEFT, WIDTH - EDGE - 8, time.in_turn_s)
    canvas = Canvas(_TOP + 2 * _PANEL + _AXIS, title, subtitle, kinds=["formula"], lasts_s=LOOP_S, begins_s=FIRST_S)
    draw_key(canvas, _KEY, 90)
    begins = time.compute_s - backward_s * len(layers)
    for panel in panels:
        _draw_computing(canvas, panel, sweep, (forward_s, backward_s), len(layers))
        _draw_waiting(canvas, panel, sweep, time)
        _draw_network(canvas, panel, sweep, time)
    parcels = [_draw_buckets(canvas, panel, sweep, time, begins) for panel in panels]
    draw_sweep(canvas, sweep, _TOP + _NAME - 8, _TOP + 2 * _PANEL - 6)
    for panel, boxes in zip(panels, parcels, strict=True):
        _send_buckets(canvas, panel, sweep, time, boxes)
        _draw_words(canvas, panel, sweep, time, (factor, unit))
    draw_axis(canvas, Axis(sweep.left, sweep.right, sweep.reach * factor), _TOP + 2 * _PANEL + 8, f"time ({unit})")
    return Drawing(canvas, title=title, description="\n".join([subtitle, *_in_words(time, panels)]), kinds=["formula"])


def _lane(panel: _Panel, lane: str) -> float:
    """The top of a bar in a lane."""
    return panel.top + _NAME + _PITCH * _LANES.index(lane) + (_LANE - _BAR) / 2


def _bar(
    canvas: Canvas, sweep: Sweep, y: float, start: float, end: float, hue: str, words: str = "", **look: Any
) -> None:
    """A stretch of time with what is written on it, where that fits."""
    x, wide = sweep.x(start), sweep.x(end) - sweep.x(start)
    canvas.box(x, y, wide, _BAR, fill=hue, stroke=style.PAPER, stroke_width=1.2, **look)
    if words and text_width(words, SMALL) + 4 < wide:
        canvas.text(x + wide / 2, y + _BAR / 2, words, size=SMALL, align="middle", colour=text_on(hue))


def _draw_computing(canvas: Canvas, panel: _Panel, sweep: Sweep, passes_s: tuple[float, float], layers: int) -> None:
    """Each layer's forward, then each layer's backward, with its number."""
    y, time = _lane(panel, "compute"), 0.0
    numbers = [*range(1, layers + 1)]
    for (what, order), each in zip((("forward", numbers), ("backward", numbers[::-1])), passes_s, strict=True):
        for layer in order:
            _bar(canvas, sweep, y, time, time + each, style.COMPUTE[what], str(layer))
            time += each


def _draw_waiting(canvas: Canvas, panel: _Panel, sweep: Sweep, time: DdpTime) -> None:
    end = _end(time, panel)
    if end > time.compute_s:
        _bar(canvas, sweep, _lane(panel, "compute"), time.compute_s, end, style.IDLE, "waits")


def _draw_network(canvas: Canvas, panel: _Panel, sweep: Sweep, time: DdpTime) -> None:
    """A message for each bucket."""
    starts = time.starts_s(overlap=panel.overlap)
    for number, (start, duration) in enumerate(zip(starts, time.all_reduce_s, strict=True), 1):
        _bar(canvas, sweep, _lane(panel, "network"), start, start + duration, style.COMMUNICATION, str(number))


_Box = tuple[float, float]  # left and width


def _draw_buckets(canvas: Canvas, panel: _Panel, sweep: Sweep, time: DdpTime, begins_s: float) -> list[_Box]:
    """Under the backward that fills it, each bucket's outline."""
    found = []
    for number, (since, ready) in enumerate(pairwise([begins_s, *time.ready_s]), 1):
        x, wide = sweep.x(since) + 1, sweep.x(ready) - sweep.x(since) - 2
        y = _lane(panel, "buckets")
        canvas.box(x, y, wide, _BAR, fill="none", stroke=style.SOFT, stroke_dasharray="3 3", corner=4)
        canvas.text(x + wide / 2, y + _BAR / 2, str(number), size=SMALL, align="middle", colour=style.SOFT)
        found.append((x, wide))
    return found


def _send_buckets(canvas: Canvas, panel: _Panel, sweep: Sweep, time: DdpTime, boxes: Sequence[_Box]) -> None:
    """Each bucket's gradients: they come with backward, wait in their place, and go when the network takes them."""
    y, down = _lane(panel, "buckets"), _lane(panel, "network") - _lane(panel, "buckets")
    starts = time.starts_s(overlap=panel.overlap)
    for number, ((x, wide), ready, start) in enumerate(zip(boxes, time.ready_s, starts, strict=True), 1):
        filled, leaves = sweep.passes(ready), sweep.passes(start)
        begins = filled - (sweep.passes(ready) - sweep.passes(0)) * wide / (sweep.x(ready) - sweep.left)
        grows = canvas.moving(
            (0, "transform:scaleX(0)"), (begins, "transform:scaleX(0)"), (filled, "transform:scaleX(1)")
        )
        goes = canvas.moving(
            (0, "opacity:1;transform:translate(0px,0px)"),
            (leaves, "opacity:1;transform:translate(0px,0px)"),
            (leaves + _LEAVES_S, f"opacity:1;transform:translate({sweep.x(start) - x:.4g}px,{down:g}px)"),
            (leaves + _GONE_S, f"opacity:0;transform:translate({sweep.x(start) - x:.4g}px,{down:g}px)"),
        )
        place = canvas.group(transform=f"translate({x:.5g},{y:g})")
        parcel = canvas.group(goes, parent=place, opacity=0)
        hue = style.COMPUTE["backward"]
        canvas.box(0, 0, wide, _BAR, fill=hue, corner=4, motion=grows, parent=parcel)
        canvas.text(wide / 2, _BAR / 2, str(number), size=SMALL, align="middle", colour=text_on(hue), parent=parcel)


def _end(time: DdpTime, panel: _Panel) -> float:
    return time.overlapped_s if panel.overlap else time.in_turn_s


def _draw_words(canvas: Canvas, panel: _Panel, sweep: Sweep, time: DdpTime, unit: tuple[float, str]) -> None:
    """Names of the run and its lanes, and what came out of it once it has ended."""
    for lane in _LANES:
        canvas.text(EDGE, _lane(panel, lane) + _BAR / 2, lane, size=SMALL, colour=style.SOFT)
    canvas.text(EDGE, panel.top + 14, panel.name, bold=True)
    end = _end(time, panel)
    group = canvas.group(canvas.appears(sweep.passes(end)))
    words = f"step {end * unit[0]:.3g} {unit[1]}, waits {(end - time.compute_s) * unit[0]:.3g} {unit[1]}"
    canvas.text(WIDTH - EDGE, panel.top + 14, words, align="end", parent=group)
    canvas.box(sweep.x(end) - 1, panel.top + _NAME - 2, 2, 3 * _PITCH, fill=style.INK, parent=group)


def _in_words(time: DdpTime, panels: Sequence[_Panel]) -> list[str]:
    lines = []
    for panel in panels:
        end, starts = _end(time, panel), time.starts_s(overlap=panel.overlap)
        leaves = ", ".join(style.seconds(start) for start in starts)
        waits = style.seconds(end - time.compute_s)
        lines.append(f"  {panel.name}: step {style.seconds(end)}, of it {waits} waiting; buckets leave at {leaves}")
    return lines
