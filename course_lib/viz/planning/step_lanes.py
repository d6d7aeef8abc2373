"""One step of a policy on lanes: its pipeline as the instruction lists run it, then what comes after the pipeline.

Replicas, and the GPUs that share a stage's matrices, all do the same at the same time: a lane is one pipeline rank, and
stands for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from course_lib.schedules import Slot, idle_s
from course_lib.sim.exact import ExactStep
from course_lib.sim.step import CAUSE_NAMES
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis
from course_lib.viz.ink.canvas import SMALL, Canvas, rectangles
from course_lib.viz.ink.cause_hues import CAUSE_GROUPS, CAUSE_HUES
from course_lib.viz.ink.clock import DIGITS, Clock, time_unit
from course_lib.viz.ink.entries import Entry
from course_lib.viz.schedules.lanes import BOTTOM, TOP, draw_lanes, key_of
from course_lib.viz.schedules.runs import Run

_WORD = "pp"  # the axis along which lanes are counted
_MOST_LANES, _ROOM, _LANE = 16, 272.0, 34.0  # lanes; pixels of all together, and the most of one
_TALL = BOTTOM - TOP  # of a lane
_NARROW, _COLUMN = 1.0, 4.0  # pixels: the least of a box that is drawn, and of a column drawn in place of several
_LEAST = 0.5  # pixels of something after the pipeline that is worth a colour
_MESSAGES = style.COMMUNICATION


def shown_ranks(step: ExactStep) -> list[int]:
    """The pipeline ranks that have a lane: all, or the first, the last and as many between as there is room for."""
    ranks = step.schedule.n_ranks
    return [round(rank) for rank in np.linspace(0, ranks - 1, min(ranks, _MOST_LANES))]


def lane_height(step: ExactStep) -> float:
    """Pixels of one lane."""
    return min(_LANE, _ROOM / len(shown_ranks(step)))


def clock_of_step(step: ExactStep) -> Clock:
    """The unit in which a step is a number between 1 and 1000."""
    return Clock(*time_unit(step.step_s))


def draw_step(canvas: Canvas, step: ExactStep, axis: Axis, top: float) -> None:
    """The lanes from `top` on: a box for each pass through a stage, or columns where boxes would be too narrow.

    Each has a slate foot, as tall as the part of its rank's busy time that goes into messages along tp, cp and ep.
    `axis` is in seconds.
    """
    lane = lane_height(step)
    if _drawn_one_by_one(step, axis):
        draw_lanes(canvas, _run(step), clock_of_step(step), axis, top, lane, word=_WORD)
        canvas.path(rectangles(_feet(step, axis, top, lane)), fill=_MESSAGES)
    else:
        _draw_columns(canvas, step, axis, top, lane)
    _draw_after(canvas, step, axis, top, lane)


def step_key(step: ExactStep, axis: Axis) -> list[Entry]:
    """All that occurs."""
    if _drawn_one_by_one(step, axis):
        entries = key_of([_run(step)])
    else:
        kinds = {*map(_run(step).what, step.computed[0])}
        entries = [Entry(kind, [hue]) for kind, hue in style.COMPUTE.items() if kind in kinds]
        entries += [Entry("idle", [style.IDLE])]
    entries += [Entry(f"messages along {', '.join(step.along)}", [_MESSAGES])] * (max(step.messages_s) > 0)
    after = {*_after(step, axis)}
    return [*entries, *(Entry(name, [hue]) for name, (hue, causes) in CAUSE_GROUPS.items() if after & {*causes})]


def step_words(step: ExactStep) -> list[str]:
    """What each lane does, and what follows."""
    clock = clock_of_step(step)
    idle = idle_s(_run(step).slots, step.schedule.n_ranks)
    m = step.schedule.n_microbatches
    lines = []
    for rank in shown_ranks(step):
        messages = m * step.messages_s[rank]
        computes = step.pipeline_s - idle[rank] - messages
        said = f"computes {clock.says(computes)}, messages {clock.says(messages)}, idle {clock.says(idle[rank])}"
        lines.append(f"  {_WORD} {rank}: {said}; layers {step.layers[rank]}")
    after = [f"{CAUSE_NAMES[cause]} {clock.says(seconds)}" for cause, seconds in step.after_s.items() if seconds > 0]
    return [*lines, f"  after the pipeline: {', '.join(after)}"]


def _run(step: ExactStep) -> Run:
    """The pipeline without its messages, which are too short to be seen."""
    return Run(step.schedule, [slot for slots in step.computed for slot in slots])


def _drawn_one_by_one(step: ExactStep, axis: Axis) -> bool:
    """Whether each lane has its place and each box can be seen."""
    shortest = min(slot.end_s - slot.start_s for slot in _run(step).slots if slot.end_s > slot.start_s)
    return step.schedule.n_ranks <= _MOST_LANES and axis.x(shortest) - axis.left >= _NARROW


def _busy(step: ExactStep, rank: int) -> list[tuple[float, float]]:
    """The stretches in which a rank does not wait for another stage."""
    found: list[tuple[float, float]] = []
    for slot in step.computed[rank]:
        follows = bool(found) and round(slot.start_s - found[-1][1], DIGITS) <= 0
        found.append((found.pop()[0] if follows else slot.start_s, slot.end_s))
    return found


def _messages_share(step: ExactStep, rank: int) -> float:
    """Of a rank's busy time, the part that goes into messages."""
    return step.schedule.n_microbatches * step.messages_s[rank] / sum(end - start for start, end in _busy(step, rank))


def _feet(step: ExactStep, axis: Axis, top: float, lane: float) -> list[tuple[float, float, float, float]]:
    """As rectangles."""
    found = []
    for rank in range(step.schedule.n_ranks):
        tall, bottom = _messages_share(step, rank) * _TALL * lane, top + (rank + BOTTOM) * lane
        found += [(axis.x(a), bottom - tall, axis.x(b) - axis.x(a), tall) for a, b in _busy(step, rank) if tall > 0]
    return found


def _draw_columns(canvas: Canvas, step: ExactStep, axis: Axis, top: float, lane: float) -> None:
    """Each lane's time in columns of equal width, as tall as the shares of what is done in them, one on the other."""
    ranks, right = shown_ranks(step), axis.x(step.pipeline_s)
    edges = column_edges(step, axis)
    ground: list[tuple[float, float, float, float]] = []
    found: dict[str, str] = {}
    for place, rank in enumerate(ranks):
        y = top + (place + TOP) * lane
        canvas.text(canvas.edge, top + (place + 0.5) * lane, f"{_WORD} {rank}", size=SMALL)
        ground.append((axis.left, y, right - axis.left, _TALL * lane))
        for hue, heights in _stacked(step, rank, edges).items():
            outline = _outline([axis.x(edge) for edge in edges], y + _TALL * lane, heights * _TALL * lane)
            found[hue] = found.get(hue, "") + outline
    canvas.path(rectangles(ground), fill=style.IDLE)
    for hue, d in reversed(found.items()):  # the tallest first: each hides what is below its own part
        canvas.path(d, fill=hue)


def column_edges(step: ExactStep, axis: Axis) -> Any:
    """Where columns begin and end: each is as long as some whole turns of a rank that is never idle."""
    m, v = step.schedule.n_microbatches, step.schedule.stages_per_rank
    turn_s = max(sum(b - a for a, b in _busy(step, rank)) for rank in shown_ranks(step)) / (m * v)
    wide = turn_s * np.ceil(_COLUMN / (axis.x(turn_s) - axis.left))
    return np.append(np.arange(0, step.pipeline_s - wide / 2, wide), step.pipeline_s)


def _stacked(step: ExactStep, rank: int, edges: Any) -> dict[str, Any]:
    """By colour, from the foot on: how far up each column of a lane this part reaches, from 0 to 1."""
    mine, foot = step.computed[rank], _messages_share(step, rank)
    kinds = [*map(_run(step).what, mine)]
    parts = {_MESSAGES: [foot for _ in mine]}
    parts |= {hue: [(one == kind) * (1 - foot) for one in kinds] for kind, hue in style.COMPUTE.items()}
    reached, stacked = np.zeros(len(edges) - 1), {}
    for hue, shares in parts.items():
        if any(shares):
            reached = reached + column_shares(mine, shares, edges)
            stacked[hue] = reached
    return stacked


def column_shares(slots: Sequence[Slot], shares: Sequence[float], edges: Any) -> Any:
    """Of each column's time, the part in which `shares` of these slots run, which follow each other."""
    times = np.array([(slot.start_s, slot.end_s) for slot in slots])
    spent = np.cumsum((times[:, 1] - times[:, 0]) * np.array(shares))
    upto = np.stack([np.concatenate([[0.0], spent[:-1]]), spent], axis=1)
    return np.diff(np.interp(edges, times.reshape(-1), upto.reshape(-1))) / np.diff(edges)


def _outline(edges: Sequence[float], foot: float, heights: Any) -> str:
    """Columns on a foot as one shape; neighbours that look the same are one column."""
    tall = [round(float(height), 1) for height in heights]
    d = f"M{edges[0]:.6g} {foot:.6g}"
    for number, height in enumerate(tall):
        if number + 1 == len(tall) or tall[number + 1] != height:
            d += f"V{foot - height:.5g}H{edges[number + 1]:.5g}"
    return f"{d}V{foot:.6g}z"


def _after(step: ExactStep, axis: Axis) -> list[str]:
    """The causes after the pipeline that can be seen."""
    return [cause for cause, s in step.after_s.items() if axis.x(s) - axis.left >= _LEAST]


def _draw_after(canvas: Canvas, step: ExactStep, axis: Axis, top: float, lane: float) -> None:
    """What follows on all lanes alike."""
    start = step.pipeline_s
    for cause, seconds in step.after_s.items():
        if cause in _after(step, axis):
            left, right = axis.x(start), axis.x(start + seconds)
            lanes = range(len(shown_ranks(step)))
            boxes = [(left, top + (place + TOP) * lane, right - left, _TALL * lane) for place in lanes]
            canvas.path(rectangles(boxes), fill=CAUSE_HUES[cause])
        start += seconds
