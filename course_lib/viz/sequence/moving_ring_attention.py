"""Ring attention in motion: keys and values go round, queries stay, and what each rank carries grows block by block."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import cos, pi, sin
from typing import Any

import drawsvg

from course_lib.sequence_cut import SequenceCut
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import DELAY, SMALL, WIDE, WIDE_EDGE, Canvas, text_on, text_width
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.sequence.meeting_table import Table, draw_cells, draw_headings
from course_lib.viz.sequence.rounds import Meeting, busiest, rounds
from course_lib.viz.wires.holdings import check_picture_size

_HEIGHT, _CENTRE = 494.0, (195.0, 284.0)
_RADIUS, _TRACK = 128.0, 64.0  # of the ranks, and of the ring on which keys and values travel
_LARGE = 4  # ranks; larger rings are drawn tighter
_START_S, _END_S, _STEP_S, _SHORT_STEP_S = 2.0, 4.0, 2.6, 1.8
_COMPUTED, _LEAVES, _ARRIVES, _FADE_S = 0.12, 0.4, 0.85, 0.25  # of a step; seconds
_Steps = list[list[Meeting]]


@dataclass(frozen=True)
class _Clock:
    """When in the loop a step begins; after the last one, when all are through."""

    steps: int

    @property
    def step_s(self) -> float:
        return _STEP_S if self.steps <= _LARGE else _SHORT_STEP_S

    def at(self, step: int, share: float = 0.0) -> float:
        return _START_S + (step + share) * self.step_s

    @property
    def ends(self) -> float:
        return self.at(self.steps)


def animate_ring_attention(cut: SequenceCut) -> Drawing:
    """Attention over a sequence that is cut over ranks, step by step.

    On the left keys and values travel. On the right each rank's queries meet the keys of every rank: what it computes,
    in which step, and what it skips since all of these keys are later. It carries max, sum and out along.
    Raises: ValueError for more than 8 ranks.
    """
    check_picture_size("animate_ring_attention", cut.size)
    steps, clock = rounds(cut), _Clock(cut.size)
    title = f"Ring attention on {cut.size} rank{'s' * (cut.size > 1)}, {cut.order}"
    subtitle = f"{cut.length} positions: queries stay, keys and values go round"
    lasts_s = clock.ends + _END_S
    canvas = Canvas(_HEIGHT, title, subtitle, width=WIDE, kinds=["formula"], lasts_s=lasts_s)
    _draw_track(canvas, cut.size)
    _draw_travel(canvas, clock, steps)
    table = Table(cut)
    draw_headings(canvas, table)
    for number, step in enumerate(steps):
        motions = (canvas.appears(clock.at(number, _COMPUTED)), canvas.shown(clock.at(number), clock.at(number + 1)))
        draw_cells(canvas, table, number, step, *motions)
    _draw_carried(canvas, clock, table, steps)
    _draw_time(canvas, clock, table, steps)
    _draw_words(canvas, clock, steps)
    return Drawing(canvas, title=title, description=_in_words(subtitle, steps), kinds=["formula"])


def _on_circle(turn: float, radius: float) -> tuple[float, float]:
    """The point at a fraction of a clockwise turn from the top."""
    return _CENTRE[0] + radius * sin(2 * pi * turn), _CENTRE[1] - radius * cos(2 * pi * turn)


def _draw_track(canvas: Canvas, p: int) -> None:
    """The way, with a head of an arrow between neighbours, and the ranks around it."""
    canvas.drawing.append(drawsvg.Circle(*_CENTRE, _TRACK, fill="none", stroke=style.FAINT, stroke_width=2.5))
    for rank in range(p):
        canvas.rank(*_on_circle(rank / p, _RADIUS), rank, word=p <= _LARGE)
        if p > 1:
            turn = (rank + 0.5) / p
            x, y = _on_circle(turn, _TRACK)
            place = f"translate({x:.2f},{y:.2f}) rotate({360 * turn:g})"
            canvas.path("M-5-6L7 0L-5 6z", fill=style.COMMUNICATION, transform=place)


def _draw_travel(canvas: Canvas, clock: _Clock, steps: _Steps) -> None:
    """Keys and values at rest in each step, and on their way to the next rank."""
    p = len(steps)
    parcels = [_parcel(canvas, rank, p) for rank in range(p)]
    trips = [_trip(canvas, rank, p, clock) for rank in range(p)]
    ring = canvas.group(transform=f"translate({_CENTRE[0]:g},{_CENTRE[1]:g})")
    for number, step in enumerate(steps):
        since = clock.at(number - 1, _ARRIVES) if number else 0.0
        last = number == p - 1
        leaves = clock.at(number, _LEAVES)
        motion = "" if p == 1 else canvas.appears(since) if last else canvas.shown(since, leaves + _FADE_S)
        rest = canvas.group(motion, **({} if last else {"opacity": 0}))
        for meeting in step:
            canvas.use(parcels[meeting.source], *_on_circle(meeting.rank / p, _TRACK), parent=rest)
        if not last:
            way = canvas.group(parent=ring, style=f"{DELAY}:{leaves:g}s")
            for meeting in step:
                canvas.use(parcels[meeting.source], motion=trips[meeting.rank], parent=way, opacity=0)


def _parcel(canvas: Canvas, rank: int, p: int) -> drawsvg.Group:
    """Keys and values of a rank, in its hue."""
    hue, parcel = style.rank_hue(rank), canvas.symbol()
    wide, tall = (52.0, 26.0) if p <= _LARGE else (30.0, 22.0)
    canvas.box(-wide / 2, -tall / 2, wide, tall, fill=hue, stroke=style.PAPER, stroke_width=2.5, parent=parcel)
    words = f"KV {rank}" if p <= _LARGE else str(rank)
    canvas.text(0, 0, words, size=SMALL, bold=True, align="middle", colour=text_on(hue), parent=parcel)
    return parcel


def _trip(canvas: Canvas, rank: int, p: int, clock: _Clock) -> str:
    """Along the ring to the next rank, upright, from the moment at which it leaves."""

    def at(turn: float) -> str:
        return f"transform:rotate({360 * turn:.4g}deg) translate(0,{-_TRACK:g}px) rotate({-360 * turn:.4g}deg)"

    start, end, takes = rank / p, (rank + 1) / p, (_ARRIVES - _LEAVES) * clock.step_s
    return canvas.moving(
        (0, f"opacity:1;{at(start)};animation-timing-function:ease-in-out"),
        (takes, f"opacity:1;{at(end)}"),
        (takes + _FADE_S, f"opacity:0;{at(end)}"),
    )


def _draw_carried(canvas: Canvas, clock: _Clock, table: Table, steps: _Steps) -> None:
    """What a rank has of its queries' softmax so far; it lights up whenever a block is merged into it."""
    left, wide = table.right + 22, 103.0
    canvas.text(left, table.top - 46, "carries for", size=SMALL, colour=style.SOFT)
    canvas.text(left, table.top - 26, "each query", size=SMALL, colour=style.SOFT)
    for number, step in enumerate(steps):
        lit = canvas.group(canvas.shown(clock.at(number, _COMPUTED), clock.at(number, _ARRIVES)), opacity=0)
        for meeting in step:
            if meeting.blocks:
                y = table.middle(meeting.rank)
                fill = style.tint(style.rank_hue(meeting.rank), 0.4)
                canvas.box(left, y - 13, wide, 26, fill=fill, corner=5, parent=lit)
    for rank in range(len(steps)):
        y, hue = table.middle(rank), style.rank_hue(rank)
        canvas.box(left, y - 13, wide, 26, fill="none", stroke=hue, stroke_width=2, corner=5)
        canvas.text(left + wide / 2, y, "max, sum, out", size=SMALL, align="middle")


def _draw_time(canvas: Canvas, clock: _Clock, table: Table, steps: _Steps) -> None:
    """A stretch for each step, as long as its busiest rank computes; a fair share is in the middle."""
    pairs, total = busiest(steps), sum(meeting.pairs for step in steps for meeting in step)
    fair, y, tall = total / len(steps), table.foot + 38, 20.0
    scale = (table.right - table.left) / (2 * fair)
    canvas.box(table.left, y - tall / 2, table.right - table.left, tall, fill=style.PANEL)
    for number, (sofar, count) in enumerate(zip(accumulate(pairs), pairs, strict=True)):
        x = table.left + (sofar - count) * scale
        motion = canvas.appears(clock.at(number, _COMPUTED))
        canvas.box(x, y - tall / 2, count * scale - 1.5, tall, fill=style.OTHER_COMPUTE, motion=motion)
        last = number == len(steps) - 1
        motion = motion if last else canvas.shown(clock.at(number, _COMPUTED), clock.at(number + 1, _COMPUTED))
        look: dict[str, Any] = {} if last else {"opacity": 0}
        canvas.text(table.right + 22, y, f"{sofar:,} pairs", bold=True, motion=motion, **look)
    x = table.left + fair * scale
    canvas.path(f"M{x:g} {y - 16:g}v32", stroke=style.INK, stroke_width=1.8, stroke_dasharray="6 4", fill="none")
    canvas.text(x, y + 28, f"fair share: {fair:,.4g}", size=SMALL, align="middle")
    canvas.text(table.left - 12, y, "busiest rank", size=SMALL, colour=style.SOFT, align="end")


def _draw_words(canvas: Canvas, clock: _Clock, steps: _Steps) -> None:
    """What happens now; drawn is the end."""
    p = len(steps)
    x = WIDE_EDGE + 10 + 1.1 * text_width(f"step {p} of {p}", bold=True)
    said = [("start", "every rank has the queries, keys and values of its own positions", 0.0, clock.at(0))]
    for number, step in enumerate(steps):
        said.append((f"step {number + 1} of {p}", _news(step), clock.at(number), clock.at(number + 1)))
    for head, words, since, until in said:
        motion = canvas.shown(since, until)
        canvas.text(WIDE_EDGE, 92, head, bold=True, motion=motion, opacity=0)
        canvas.text(x, 92, words, motion=motion, opacity=0)
    motion = canvas.appears(clock.ends)
    canvas.text(WIDE_EDGE, 92, "done", bold=True, motion=motion)
    canvas.text(x, 92, "out / sum is the attention of each rank's own queries", motion=motion)


def _news(step: list[Meeting]) -> str:
    """What the ranks do in a step."""
    skip = [str(meeting.rank) for meeting in step if not meeting.blocks]
    if skip:
        one = len(skip) == 1
        ranks = f"rank {skip[0]} skips" if one else f"ranks {', '.join(skip)} skip"
        return f"{ranks}: these keys are later than all of {'its' if one else 'their'} queries"
    pairs = [meeting.pairs for meeting in step]
    if step[0].source == step[0].rank:
        return "every rank begins with its own keys, and sends them on meanwhile"
    if len({*pairs}) == 1:
        return f"every rank computes {pairs[0]:,} pairs and merges them into what it carries"
    return f"the ranks compute {min(pairs):,} to {max(pairs):,} pairs, and merge them"


def _in_words(subtitle: str, steps: _Steps) -> str:
    """Whose keys each rank has in each step, and what it computes with them."""
    p, lines = len(steps), [subtitle]
    for number, step in enumerate(steps, 1):
        said = [
            f"rank {one.rank} with keys of rank {one.source}: {f'{one.pairs:,} pairs' if one.blocks else 'skips'}"
            for one in step
        ]
        lines.append(f"  step {number} of {p}: {'; '.join(said)}")
    pairs, total = busiest(steps), sum(one.pairs for step in steps for one in step)
    sums = " + ".join(f"{count:,}" for count in pairs)
    lines.append(f"the busiest rank of each step: {sums} = {sum(pairs):,} pairs; a fair share is {total / p:,.4g}")
    return "\n".join(lines)
