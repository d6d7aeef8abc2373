"""Who sends to whom in each step of an all-reduce: one column is one start-up time, thickness is bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from course_lib.costs.comm.collectives import comm_time
from course_lib.errors import four_parts
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import check_picture_size

_NAMES, _GAP, _LANE = 0.85, 0.6, 0.42  # inches: names of the ranks, between panels, between lanes
_THINNEST, _THICKEST = 1.2, 4.6  # points, the latter for the whole tensor
_FAINT = 0.25  # strength of a colour that nobody follows
_ACROSS = 2  # panels in a row
_DOUBLING = ("recursive_doubling", "halving_doubling")


class Sent(NamedTuple):
    """One message: from rank to rank, and how many of the tensor's p chunks."""

    source: int
    target: int
    chunks: int


Steps = list[list[Sent]]


def all_reduce_messages(algorithm: str, world_size: int) -> Steps:
    """The messages of each step, the tensor being cut into p equal chunks.

    Raises: ValueError for an algorithm without such a picture, or ranks that are no power of two where one is needed.
    """
    p = world_size
    distances = [1 << k for k in range((p - 1).bit_length())]
    to_root = [[Sent(v + d, v, p) for v in range(0, p - d, 2 * d)] for d in distances]
    if algorithm == "naive":
        return [[Sent(r, 0, p)] for r in range(1, p)] + [[Sent(0, r, p)] for r in range(1, p)]
    if algorithm == "tree":
        return to_root + [[Sent(parent, child, p) for child, parent, _ in level] for level in reversed(to_root)]
    if algorithm == "ring":
        return [[Sent(r, (r + 1) % p, 1) for r in range(p)] for _ in range(2 * (p - 1))]
    _require_power_of_two(algorithm, p)
    if algorithm == "recursive_doubling":
        return [[Sent(r, r ^ d, p) for r in range(p)] for d in distances]
    return [[Sent(r, r ^ d, d) for r in range(p)] for d in (*reversed(distances), *distances)]


def _require_power_of_two(algorithm: str, world_size: int) -> None:
    if algorithm not in _DOUBLING:
        known = ["naive", "tree", "ring", *_DOUBLING]
        rule, way_out = "there is no picture of its messages", f"choose one of {', '.join(known)}"
        raise ValueError(four_parts("plot_messages", f"algorithm={algorithm!r}", rule, way_out))
    if world_size & (world_size - 1):
        rule, way_out = "partners at distance 1, 2, 4, ... need a power of two", "choose 2, 4 or 8"
        raise ValueError(four_parts("plot_messages", f"world_size={world_size}", rule, way_out))


@sheet.course_style()
def plot_messages(
    algorithms: Sequence[str], world_size: int = 8, *, upto: int | None = None, follow: int | None = None
) -> Picture:
    """Messages of all-reduce algorithms side by side, on one scale of steps and of bytes; the first `upto` steps.

    With `follow`, only what this rank sends and receives is in full colour.

    Raises: ValueError for more than 8 ranks, and as `all_reduce_messages`.
    """
    check_picture_size("plot_messages", world_size)
    panels = [(name, all_reduce_messages(name, world_size)) for name in algorithms]
    rows = [panels[i : i + _ACROSS] for i in range(0, len(panels), _ACROSS)]
    across = len(rows[0])
    free = style.PAGE_WIDTH - 2 * style.MARGIN - across * _NAMES - (across - 1) * _GAP
    column = free / max(sum(max(1, len(steps)) for _, steps in row) for row in rows)
    tall = (world_size - 1) * _LANE + 1.94
    title = "Who sends to whom, step by step"
    subtitle = "colour = sender;  column = step;  thickness = bytes of one message;  M = bytes of the tensor"
    figure, page = sheet.new_page(style.HEADER + len(rows) * tall + 0.12, title, subtitle)
    for number, row in enumerate(rows):
        left, top = style.MARGIN, style.HEADER + 0.18 + number * tall
        for name, steps in row:
            _draw_panel(page, name, steps, (left, top), column, world_size, upto, follow)
            left += max(_NAMES + max(1, len(steps)) * column, sheet.text_width(_cost(name, world_size))) + _GAP
    words = [line for name, steps in panels for line in _in_words(name, steps[:upto], world_size)]
    return Picture(figure, title=f"{title}, on {world_size} ranks", description="\n".join(words), kinds=["formula"])


def _cost(algorithm: str, world_size: int) -> str:
    cost = comm_time("all_reduce", algorithm, world_size=world_size, length=world_size, itemsize=1)
    return f"{cost.steps} steps, {cost.critical_bytes / world_size:.3g} M in a row"


def _draw_panel(
    page: Axes,
    name: str,
    steps: Steps,
    at: tuple[float, float],
    column: float,
    world_size: int,
    upto: int | None,
    follow: int | None,
) -> None:
    """One algorithm: its name, a lane per rank, the arrows of each step, and what it costs."""
    left, top = at
    marks.label(page, left, top, charts.algorithm_name(name), bold=True, align="left")
    cost = _cost(name, world_size)
    lanes = [top + 0.42 + rank * _LANE for rank in range(world_size)]
    start, end = left + _NAMES, left + _NAMES + len(steps) * column
    for rank, y in enumerate(lanes):
        marks.rank_badge(page, left + 0.37, y, rank)
        page.plot([start, end], [y, y], color=style.FAINT, linewidth=1, zorder=0)
    for number, messages in enumerate(steps):
        x = start + number * column
        shown = messages if upto is None or number < upto else []
        for down, count in ((0.36, number + 1), *((0.64, message.chunks) for message in shown[:1])):
            marks.label(page, x + column / 2, lanes[-1] + down, str(count), size=style.SMALL_SIZE, colour=style.SOFT)
        for message in shown:
            faint = follow is not None and follow not in (message.source, message.target)
            _draw_message(page, message, (x + 0.1 * column, x + 0.92 * column), lanes, faint=faint)
    for down, text in ((0.36, "step"), (0.64, f"M/{world_size} ×")):
        marks.label(page, left, lanes[-1] + down, text, size=style.SMALL_SIZE, colour=style.SOFT, align="left")
    marks.label(page, left, lanes[-1] + 0.96, cost, colour=style.SOFT, align="left")


def _draw_message(page: Axes, message: Sent, xs: tuple[float, float], lanes: Sequence[float], *, faint: bool) -> None:
    """A slanted arrow; one from the last rank of a ring to the first leaves below and comes in above."""
    start, end = xs
    line = _THINNEST + (_THICKEST - _THINNEST) * message.chunks / len(lanes)
    hue = style.rank_hue(message.source)
    colour, zorder = (style.tint(hue, _FAINT), 2.0) if faint else (hue, 3.0)
    if message.chunks == 1 and message.source == len(lanes) - 1 > 1 and message.target == 0:
        middle = (start + end) / 2
        page.plot([start, middle], [lanes[-1], lanes[-1] + _LANE / 2], color=colour, linewidth=line, zorder=zorder)
        marks.arrow(page, (middle, lanes[0] - _LANE / 2), (end, lanes[0]), colour=colour, line=line, zorder=zorder)
    else:
        tips = (start, lanes[message.source]), (end, lanes[message.target])
        marks.arrow(page, *tips, colour=colour, line=line, zorder=zorder)


def _in_words(name: str, steps: Steps, world_size: int) -> list[str]:
    lines = [f"{charts.algorithm_name(name)}: {_cost(name, world_size)}"]
    for number, messages in enumerate(steps):
        sent = ", ".join(f"{m.source} to {m.target}" for m in messages)
        lines.append(f"  step {number + 1}, {messages[0].chunks}/{world_size} M each: {sent}")
    return lines
