"""The ring all-reduce in motion: chunks travel from rank to rank, and every rank's buffers fill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import cos, pi, sin
from typing import Any

import drawsvg

from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import DELAY, EDGE, SMALL, TEXT, Canvas, rectangles, text_width
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.wires.ring_steps import Parts, RingStep, Transfer, ring_steps

_HEIGHT, _CENTRE, _RADIUS = 418.0, (154.0, 256.0), 96.0
_LEFT, _RIGHT, _TALL, _GAP = 364.0, 616.0, 228.0, 4.0  # the table of buffers
_LARGE = 4  # ranks; larger rings are drawn tighter
_START_S, _END_S, _STEP_S, _SHORT_STEP_S = 1.8, 3.4, 2.0, 1.3
_ARRIVED, _FADE_S = 0.66, 0.15  # of a step: until then a chunk travels
_Symbols = list[drawsvg.Group]
_PHASES = {
    "start": "every rank holds its own tensor, cut into chunks",
    "reduce-scatter": "reduce-scatter: the next rank adds what arrives",
    "all-gather": "all-gather: the next rank keeps what arrives",
}


def animate_ring(world_size: int = 4) -> Drawing:
    """A ring all-reduce from the start to the end: on the left what travels, on the right what every rank holds.

    Colours are ranks: a chunk has a stripe for each rank whose part is in its sum.
    Raises: ValueError for more than 8 ranks.
    """
    steps = ring_steps(world_size)
    title = f"Ring all-reduce on {world_size} rank{'s' * (world_size > 1)}"
    canvas = Canvas(_HEIGHT, title, _goal(world_size), lasts_s=_time(steps, len(steps)) + _END_S)
    _draw_circle(canvas, world_size)
    _draw_headings(canvas, world_size)
    _draw_buffers(canvas, steps)
    _draw_parcels(canvas, steps)
    for rank in range(world_size):
        x, y = _on_circle(rank / world_size)
        canvas.rank(x, y, rank, word=world_size <= _LARGE)
    _draw_words(canvas, steps)
    return Drawing(canvas, title=title, description=_in_words(steps))


def _goal(world_size: int) -> str:
    if world_size == 1:
        return "one rank has the sum already: nothing to send"
    return f"every rank wants the sum of the {world_size} tensors"


def _time(steps: list[RingStep], number: int) -> float:
    """When step `number` begins; after the last one, when all are through."""
    each = _STEP_S if len(steps[0].buffers) <= _LARGE else _SHORT_STEP_S
    return 0.0 if number == 0 else _START_S + (number - 1) * each


def _arrival(steps: list[RingStep], number: int) -> float:
    begins = _time(steps, number)
    return begins + _ARRIVED * (_time(steps, number + 1) - begins)


def _on_circle(turn: float) -> tuple[float, float]:
    """The point at a fraction of a clockwise turn from the top."""
    return _CENTRE[0] + _RADIUS * sin(2 * pi * turn), _CENTRE[1] - _RADIUS * cos(2 * pi * turn)


def _draw_circle(canvas: Canvas, p: int) -> None:
    """The way, with a head of an arrow in front of each rank."""
    look = {"fill": "none", "stroke": style.FAINT, "stroke_width": 2.5}
    canvas.drawing.append(drawsvg.Circle(*_CENTRE, _RADIUS, **look))
    for rank in range(p if p > 1 else 0):
        turn = (rank + 0.5) / p
        x, y = _on_circle(turn)
        place = f"translate({x:.2f},{y:.2f}) rotate({360 * turn:g})"
        canvas.path("M-5-6L7 0L-5 6z", fill=style.COMMUNICATION, transform=place)


def _cell(p: int, rank: int, chunk: int) -> tuple[float, float, float, float]:
    """Left, top, width and height of a chunk in the table."""
    wide, tall = (_RIGHT - _LEFT + _GAP) // max(p, 3), _TALL // max(p, 3)
    top = _CENTRE[1] - p * tall // 2
    return _LEFT + chunk * wide, top + rank * tall, wide - _GAP, tall - _GAP


def _stripes(p: int, box: tuple[float, float, float, float], parts: Iterable[int]) -> dict[int, str]:
    """By rank, its stripe in a chunk."""
    x, y, wide, tall = box
    return {rank: f"M{x:g} {y + (rank + 0.5) * tall / p:.4g}h{wide:g}" for rank in parts}


def _draw_headings(canvas: Canvas, p: int) -> None:
    for rank in range(p):
        _, y, _, tall = _cell(p, rank, 0)
        canvas.rank(_LEFT - 46, y + tall / 2, rank)
        x, y, wide, _ = _cell(p, 0, rank)
        words = f"chunk {rank}" if p <= _LARGE else str(rank)
        canvas.text(x + wide / 2, y - 16, words, size=SMALL, colour=style.SOFT, align="middle")
    if p > _LARGE:
        canvas.text(_LEFT - 46, _cell(p, 0, 0)[1] - 16, "chunk", size=SMALL, colour=style.SOFT, align="middle")


def _draw_buffers(canvas: Canvas, steps: list[RingStep]) -> None:
    """Each rank's own parts, what every step adds to them, and the sums' names where they are complete."""
    p = len(steps[0].buffers)
    every, names = [_cell(p, rank, chunk) for rank in range(p) for chunk in range(p)], _names(canvas, p)
    canvas.path(rectangles(every), fill=style.PANEL, stroke=style.FAINT)
    for state in steps:
        motion = canvas.appears(_arrival(steps, state.number)) if state.number else ""
        hues, done = _news(steps, state)
        group = canvas.group(motion, stroke_width=f"{_cell(p, 0, 0)[3] / p:.4g}")
        for rank, d in hues.items():
            canvas.path(d, stroke=style.rank_hue(rank), parent=group)
        for rank, chunk in done:
            x, y, wide, tall = _cell(p, rank, chunk)
            canvas.use(names[chunk], x + wide / 2, y + tall / 2, parent=group)
    for state in steps[1:]:
        boxes = [_cell(p, transfer.target, transfer.chunk) for transfer in state.transfers]
        motion = canvas.shown(_arrival(steps, state.number), _arrival(steps, state.number + 1))
        look = {"fill": "none", "stroke": style.COMMUNICATION, "stroke_width": 3, "opacity": 0}
        canvas.path(rectangles(boxes), motion=motion, **look)


def _news(steps: list[RingStep], state: RingStep) -> tuple[dict[int, str], list[tuple[int, int]]]:
    """By rank, its stripes that this step brings; and the (rank, chunk) that it completes."""
    p, hues, done = len(state.buffers), defaultdict[int, str](str), []
    for rank, chunks in enumerate(state.buffers):
        for chunk, parts in enumerate(chunks):
            before: Parts = steps[state.number - 1].buffers[rank][chunk] if state.number else ()
            new = [part for part in parts if part not in before]
            for part, d in _stripes(p, _cell(p, rank, chunk), new).items():
                hues[part] += d
            if new and len(parts) == p > 1:
                done.append((rank, chunk))
    return dict(hues), done


def _names(canvas: Canvas, p: int) -> list[drawsvg.Group]:
    """By chunk, what its finished sum is called."""
    size = TEXT if p <= _LARGE else 12.5
    wide, tall = 2.1 * size, 1.4 * size
    names = [canvas.symbol() for _ in range(p)]
    for chunk, name in enumerate(names):
        canvas.box(-wide / 2, -tall / 2, wide, tall, corner=tall / 2, parent=name)
        canvas.text(0, 0, f"Σ{chunk}", size=size, bold=True, align="middle", parent=name)
    return names


def _draw_parcels(canvas: Canvas, steps: list[RingStep]) -> None:
    """The chunks of every step, one on each stretch of the ring at a time."""
    p = len(steps[0].buffers)
    ring = canvas.group(transform=f"translate({_CENTRE[0]:g},{_CENTRE[1]:g})")
    ground, stripes, fronts, wholes = _parcel(canvas, p)
    for state in steps[1:]:
        begins = _time(steps, state.number)
        step_s = _time(steps, state.number + 1) - begins
        group = canvas.group(parent=ring, style=f"{DELAY}:{begins:g}s")
        for transfer in state.transfers:
            motion = _trip(canvas, transfer, p, step_s)
            if len(transfer.parts) == p or p > _LARGE:
                canvas.use(wholes[transfer.chunk], motion=motion, parent=group, opacity=0)
                continue
            parcel = canvas.group(motion, parent=group, opacity=0)
            for part in (ground, *(stripes[rank] for rank in transfer.parts), fronts[transfer.chunk]):
                canvas.use(part, parent=parcel)


def _parcel(canvas: Canvas, p: int) -> tuple[drawsvg.Group, _Symbols, _Symbols, _Symbols]:
    """What parcels are made of: the ground, a stripe for each rank, each chunk's number in front; and whole sums.

    In a large ring a parcel is small: its number alone.
    """
    wide, tall = (46.0, 38.0) if p <= _LARGE else (30.0, 26.0)
    box, ground = (-wide / 2, -tall / 2, wide, tall), canvas.symbol()
    stripes, fronts, wholes = ([canvas.symbol() for _ in range(n)] for n in (p if p <= _LARGE else 0, p, p))
    canvas.box(*box, stroke=style.PAPER, stroke_width=6, parent=ground)
    canvas.box(*box, fill=style.PANEL, parent=ground)
    for rank, stripe in enumerate(stripes):
        d = _stripes(p, box, [rank])[rank]
        canvas.path(d, stroke=style.rank_hue(rank), stroke_width=f"{tall / p:.4g}", parent=stripe)
    for chunk, (front, whole) in enumerate(zip(fronts, wholes, strict=True)):
        canvas.box(*box, fill="none", stroke=style.COMMUNICATION, stroke_width=2.5, parent=front)
        canvas.box(-10.5, -10.5, 21, 21, corner=10.5, parent=front)
        canvas.text(0, 0, str(chunk), size=SMALL, bold=True, align="middle", parent=front)
        for part in (ground, *stripes, front):
            canvas.use(part, parent=whole)
    return ground, stripes, fronts, wholes


def _trip(canvas: Canvas, transfer: Transfer, p: int, step_s: float) -> str:
    """Along the ring to the next rank, upright, from the moment at which the step begins."""

    def at(turn: float) -> str:
        return f"transform:rotate({360 * turn:.4g}deg) translate(0,{-_RADIUS:g}px) rotate({-360 * turn:.4g}deg)"

    start, end, arrives = transfer.source / p, (transfer.source + 1) / p, _ARRIVED * step_s
    return canvas.moving(
        (0, f"opacity:0;{at(start)}"),
        (_FADE_S, f"opacity:1;{at(start)};animation-timing-function:ease-in-out"),
        (arrives, f"opacity:1;{at(end)}"),
        (arrives + _FADE_S, f"opacity:0;{at(end)}"),
    )


def _draw_words(canvas: Canvas, steps: list[RingStep]) -> None:
    """What happens now, and what each rank has sent; drawn is the end."""
    p, last = len(steps[0].buffers), len(steps) - 1
    x = EDGE + 10 + 1.1 * text_width(f"step {last} of {last}", bold=True)  # room for a broader typeface
    for state in steps:
        head = f"step {state.number} of {last}" if state.number else "start"
        motion = canvas.shown(_time(steps, state.number), _time(steps, state.number + 1))
        canvas.text(EDGE, 96, head, bold=True, motion=motion, opacity=0)
    canvas.text(EDGE, 96, "done", bold=True, motion=canvas.appears(_time(steps, last + 1)))
    for phase, words in _PHASES.items():
        numbers = [state.number for state in steps if state.phase == phase]
        if numbers:
            motion = canvas.shown(_time(steps, numbers[0]), _time(steps, numbers[-1] + 1))
            canvas.text(x, 96, words, motion=motion, opacity=0)
    sums = f"every rank holds the {p} sums" if p > 1 else "the rank holds its sum"
    canvas.text(x, 96, sums, motion=canvas.appears(_time(steps, last + 1)))
    x, y = _LEFT - 77, _HEIGHT - 24
    for number in range(last + 1):
        since, until = _arrival(steps, number) if number else 0, _arrival(steps, number + 1)
        motion = canvas.appears(since) if number == last else canvas.shown(since, until)
        look: dict[str, Any] = {} if number == last else {"opacity": 0}
        canvas.text(x + 18, y, str(number), align="end", motion=motion, **look)
    canvas.text(x + 24, y, f"× 1/{p} of the tensor sent by each rank", colour=style.SOFT)


def _in_words(steps: list[RingStep]) -> str:
    """What travels in each step, and how it ends."""
    p, last = len(steps[0].buffers), len(steps) - 1
    lines = [_goal(p)]
    for state in steps[1:]:
        first = state.transfers[0]
        sends = f"rank {first.source} sends chunk {first.chunk} to rank {first.target}, each next rank the next chunk"
        lines.append(f"  step {state.number} of {last}, {state.phase}: {sends}")
    lines.append(f"at the end every rank holds the {p} sums; each has sent {last} × 1/{p} of the tensor")
    return "\n".join(lines if p > 1 else lines[:1])
