"""Opinions of workers in motion: each holds a number, talks with its neighbours, and takes a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from course_lib.errors import four_parts
from course_lib.less.consensus import disagreement, opinions
from course_lib.less.topologies import mixing
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import WIDE, WIDE_EDGE, Canvas
from course_lib.viz.ink.drawing import Drawing

_PANEL_TALL, _HEAD, _TOP, _GAP = 150.0, 34.0, 84.0, 40.0
_PANEL_WIDE = (WIDE - 2 * WIDE_EDGE - _GAP) / 2
_ROUND = 46.0  # radius of the small drawing of who talks to whom
_FIRST_S, _STEP_S, _MOVES_S, _LAST_S = 1.6, 1.6, 0.9, 3.0
_MOST_PANELS, _MOST_WORKERS, _MOST_STEPS = 4, 16, 5  # more would make a large file
_ROUND_DOT: dict[str, Any] = {"stroke_width": 11, "stroke_linecap": "round"}


class _Panel(NamedTuple):
    """One topology's opinions, by step and worker, and where they stand."""

    topology: str
    seen: list[list[float]]
    left: float
    top: float
    low: float
    high: float

    def x(self, worker: int) -> float:
        room = _PANEL_WIDE - 2 * _ROUND - 34
        return self.left + room * (worker + 0.5) / len(self.seen[0])

    def y(self, opinion: float) -> float:
        return self.top + _PANEL_TALL * (self.high - opinion) / ((self.high - self.low) or 1.0)


def animate_consensus(topologies: Sequence[str], first: Sequence[float], steps: int = 4) -> Drawing:
    """A panel for each topology: a dot's height is its worker's opinion, pale where it began, and the mean is dashed.

    Raises: ValueError for more panels, workers or steps than can be followed, or as `mixing`.
    """
    _check(topologies, first, steps)
    title = f"{len(first)} workers come to agree"
    subtitle = f"{steps} steps of gossip; a dot's height is an opinion, pale: the first; dashed: their mean"
    rows = math.ceil(len(topologies) / 2)
    lasts_s = _FIRST_S + steps * _STEP_S + _LAST_S
    height = _TOP + rows * (_HEAD + _PANEL_TALL + 22) + 8
    canvas = Canvas(
        height, title, subtitle, width=WIDE, kinds=["formula"], lasts_s=lasts_s, begins_s=lasts_s - _LAST_S / 2
    )
    lines = [subtitle]
    for place, topology in enumerate(topologies):
        left = WIDE_EDGE + (place % 2) * (_PANEL_WIDE + _GAP)
        top = _TOP + (place // 2) * (_HEAD + _PANEL_TALL + 22) + _HEAD
        panel = _Panel(topology, opinions(topology, first, steps), left, top, min(first), max(first))
        _draw_panel(canvas, panel)
        apart = ", ".join(f"{disagreement(held):.2g}" for held in panel.seen)
        lines.append(f"  {_name(topology)}: standard deviation {apart}")
    return Drawing(canvas, title=title, description="\n".join(lines), kinds=["formula"])


def _check(topologies: Sequence[str], first: Sequence[float], steps: int) -> None:
    fits = 1 <= len(topologies) <= _MOST_PANELS and 2 <= len(first) <= _MOST_WORKERS and 1 <= steps <= _MOST_STEPS
    if not fits:
        values = f"{len(topologies)} topologies, {len(first)} workers, steps={steps}"
        rule = f"at most {_MOST_PANELS}, 2 to {_MOST_WORKERS} and {_MOST_STEPS} can be followed"
        raise ValueError(four_parts("animate_consensus", values, rule, "give fewer"))


def _draw_panel(canvas: Canvas, panel: _Panel) -> None:
    """The mean, and of each worker where it began and how it moves; beside them who talks to whom."""
    name_y, right = panel.top - _HEAD / 2 - 4, panel.left + _PANEL_WIDE
    canvas.text(panel.left, name_y, _name(panel.topology), bold=True)
    mean = sum(panel.seen[0]) / len(panel.seen[0])
    ends = panel.x(len(panel.seen[0]) - 1) + 10
    dashes: dict[str, Any] = {"stroke": style.SOFT, "stroke_width": 1.5, "stroke_dasharray": "4 3"}
    canvas.path(f"M{panel.left:g} {panel.y(mean):.4g}H{ends:.4g}", **dashes)
    pale = "".join(_dot(panel.x(worker), panel.y(held)) for worker, held in enumerate(panel.seen[0]))
    canvas.path(pale, stroke=style.tint(style.INK, 0.16), **_ROUND_DOT)
    dots = canvas.group(**_ROUND_DOT)
    for worker in range(len(panel.seen[0])):
        _draw_worker(canvas, panel, worker, dots)
    _draw_links(canvas, panel, right - _ROUND - 4, panel.top + _PANEL_TALL / 2)
    _draw_apart(canvas, panel, right, name_y)


def _draw_worker(canvas: Canvas, panel: _Panel, worker: int, dots: Any) -> None:
    """A dot that stands where its opinion ends, and before that moves from step to step."""
    end = panel.y(panel.seen[-1][worker])
    rises = [panel.y(held[worker]) - end for held in panel.seen]
    frames = [(0.0, _moved(rises[0]))]
    for step, (before, after) in enumerate(zip(rises, rises[1:], strict=False)):
        begins = _begins(step)
        frames += [(begins, _moved(before)), (begins + _MOVES_S, _moved(after))]
    dot = _dot(panel.x(worker), end)
    canvas.path(dot, stroke=style.rank_hue(worker), motion=canvas.moving(*frames), parent=dots)


def _draw_links(canvas: Canvas, panel: _Panel, x: float, y: float) -> None:
    """The workers on a circle, or in the rows of their grid, and a line wherever two of them ever talk."""
    n = len(panel.seen[0])
    matrices = mixing(panel.topology, n)
    pairs = {(min(i, j), max(i, j)) for matrix in matrices for i, j in matrix.nonzero().tolist() if i != j}
    around = _in_rows(n) if panel.topology == "grid" else _in_a_circle(n)
    places = [(x + _ROUND * across, y + _ROUND * down) for across, down in around]
    lines = "".join(
        f"M{places[i][0]:.4g} {places[i][1]:.4g}L{places[j][0]:.4g} {places[j][1]:.4g}" for i, j in sorted(pairs)
    )
    canvas.path(lines, stroke=style.COMMUNICATION, stroke_width=0.8, stroke_opacity=0.55)
    dots = canvas.group(**_ROUND_DOT | {"stroke_width": 6.4})
    for worker, (across, down) in enumerate(places):
        canvas.path(_dot(across, down), stroke=style.rank_hue(worker), parent=dots)


def _in_a_circle(n: int) -> list[tuple[float, float]]:
    """From -1 to 1 across and down, the first at the top."""
    turns = [2 * math.pi * worker / n - math.pi / 2 for worker in range(n)]
    return [(math.cos(turn), math.sin(turn)) for turn in turns]


def _in_rows(n: int) -> list[tuple[float, float]]:
    """From -1 to 1 across and down, as many rows as the squarest grid has."""
    rows = next(side for side in range(math.isqrt(n), 0, -1) if n % side == 0)
    columns = n // rows
    return [
        (2 * (worker % columns) / (columns - 1) - 1, 2 * (worker // columns) / (rows - 1) - 1) for worker in range(n)
    ]


def _draw_apart(canvas: Canvas, panel: _Panel, x: float, y: float) -> None:
    """How far the opinions are apart after each step, one after the other at the same place."""
    apart = [disagreement(held) for held in panel.seen]
    last = len(apart) - 1
    for step, value in enumerate(apart):
        words = f"apart by {value:.2g}" if value > 1e-9 else "all alike"
        look: dict[str, Any] = {"colour": style.SOFT, "align": "end"}
        if step == last:
            canvas.text(x, y, words, motion=canvas.appears(_begins(step - 1) + _MOVES_S), **look)
        else:
            gone = _begins(step) + _MOVES_S
            begun = _begins(step - 1) + _MOVES_S if step else 0.0
            canvas.text(x, y, words, motion=canvas.shown(begun, gone), opacity=0, **look)


def _begins(step: int) -> float:
    """When in the loop a step of gossip is entered."""
    return _FIRST_S + step * _STEP_S


def _name(topology: str) -> str:
    return topology.replace("_", " ").replace("one peer", "one-peer")


def _moved(pixels: float) -> str:
    return f"transform:translateY({round(pixels, 1):g}px)"


def _dot(x: float, y: float) -> str:
    """A line without length, whose round ends make a dot: few letters for many dots."""
    return f"M{x:.4g} {y:.4g}h0"
