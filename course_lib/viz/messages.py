"""Who sends to whom in each step of an all-reduce: one column is one start-up time, thickness is bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from course_lib.costs import comm_time
from course_lib.errors import four_parts
from course_lib.viz.picture import Picture
from course_lib.viz.style import (
    BASE_SIZE,
    FAINT,
    HEADER,
    INK,
    MARGIN,
    PAGE_WIDTH,
    SMALL_SIZE,
    SOFT,
    course_style,
    new_page,
    rank_hue,
    text_on,
)

_LABELS, _GAP, _LANE = 0.75, 0.55, 0.44  # inches: names of the ranks, between panels, between lanes
_THICKEST = 6.5  # points, for the whole tensor
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
        raise ValueError(four_parts("all_reduce_messages", f"algorithm={algorithm!r}", rule, way_out))
    if world_size & (world_size - 1):
        rule, way_out = "partners at distance 1, 2, 4, ... need a power of two", "choose 2, 4, 8 or 16"
        raise ValueError(four_parts("all_reduce_messages", f"world_size={world_size}", rule, way_out))


def plot_messages(algorithms: Sequence[str], world_size: int = 8) -> Picture:
    """Messages of all-reduce algorithms side by side, on one scale of steps and of bytes."""
    steps = [all_reduce_messages(algorithm, world_size) for algorithm in algorithms]
    height = HEADER + 0.5 + (world_size - 1) * _LANE + 1.15
    free = PAGE_WIDTH - 2 * MARGIN - _LABELS - _GAP * (len(steps) - 1)
    column = free / sum(map(len, steps))
    facts = [_facts(algorithm, world_size) for algorithm in algorithms]
    with course_style():
        figure, page = new_page(
            height, "Who sends to whom, step by step", "one column is one step; thickness: bytes of one message"
        )
        _ranks(page, world_size)
        left = MARGIN + _LABELS
        for panel, fact in zip(steps, facts, strict=True):
            _panel(page, panel, left, column, world_size)
            page.text(left, HEADER + 0.02, fact[0], size=BASE_SIZE + 2, weight="semibold", va="center")
            page.text(left, height - 0.42, fact[1], size=BASE_SIZE, color=SOFT, va="center")
            left += len(panel) * column + _GAP
    words = "; ".join(f"{name}: {cost}" for name, cost in facts)
    return Picture(figure, title=f"Messages of all-reduce on {world_size} ranks", description=words)


def _facts(algorithm: str, world_size: int) -> tuple[str, str]:
    """The algorithm's name, and its steps and bytes one after the other as words."""
    cost = comm_time("all_reduce", algorithm, world_size=world_size, length=world_size, itemsize=1)
    return algorithm.replace("_", " "), f"{cost.steps} steps, {cost.critical_bytes / world_size:.3g} M in line"


def _lane(rank: float) -> float:
    return HEADER + 0.55 + rank * _LANE


def _ranks(page: Axes, world_size: int) -> None:
    for rank in range(world_size):
        hue = rank_hue(rank)
        badge = {"boxstyle": "circle,pad=0.28", "facecolor": hue, "edgecolor": "none"}
        where = (MARGIN + 0.2, _lane(rank))
        page.text(*where, str(rank), size=SMALL_SIZE, color=text_on(hue), ha="center", va="center", bbox=badge)


def _panel(page: Axes, steps: Steps, left: float, column: float, world_size: int) -> None:
    width = len(steps) * column
    for rank in range(world_size):
        page.plot([left, left + width], [_lane(rank)] * 2, color=FAINT, linewidth=1, zorder=0)
    for number, messages in enumerate(steps):
        x = left + number * column
        page.text(
            x + column / 2, _lane(world_size - 1) + 0.36, str(number + 1), size=SMALL_SIZE, color=SOFT, ha="center"
        )
        for message in messages:
            _arrow(page, message, x + 0.08 * column, x + 0.94 * column, world_size)
    page.plot([left + width + 0.05] * 2, [_lane(-0.2), _lane(world_size - 0.8)], color=INK, linewidth=1.2)


def _arrow(page: Axes, message: Sent, start: float, end: float, world_size: int) -> None:
    """A slanted arrow; one that goes round the ring leaves below and comes in above."""
    share = message.chunks / world_size
    if message.target == 0 and message.source == world_size - 1 and share == 1 / world_size:
        middle = (start + end) / 2
        ends = [((start, message.source), (middle, message.source + 0.5)), ((middle, -0.5), (end, 0))]
    else:
        ends = [((start, message.source), (end, message.target))]
    for (x0, lane0), (x1, lane1) in ends:
        page.add_patch(
            FancyArrowPatch(
                (x0, _lane(lane0)),
                (x1, _lane(lane1)),
                arrowstyle=f"-|>,head_width={0.16 + 0.22 * share},head_length={0.3 + 0.3 * share}",
                mutation_scale=14,
                linewidth=1.0 + (_THICKEST - 1.0) * (share - 1 / world_size),
                color=rank_hue(message.source),
                shrinkA=0,
                shrinkB=0,
                joinstyle="miter",
                capstyle="butt",
            )
        )
