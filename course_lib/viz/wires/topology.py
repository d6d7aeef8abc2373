"""Nodes and the links between them: fast inside a node, slow between nodes."""

from __future__ import annotations

from itertools import combinations

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.hardware import Link
from course_lib.units import format_bytes
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import LARGEST_PICTURE

_NODES, _NODE_SIZES = 4, 8  # what a page can hold
_TALL, _GAP = 2.3, 0.5  # inches: a node's height, the space between nodes


@sheet.course_style()
def plot_topology(node_size: int, n_nodes: int, inside: Link, between: Link) -> Picture:
    """Nodes of GPUs: thick links inside a node, a thin one from each node to the network.

    Raises: ValueError for more than 4 nodes or more than 8 GPUs in a node.
    """
    _check(node_size, n_nodes)
    ratio = inside.bandwidth_bytes_per_s / between.bandwidth_bytes_per_s
    title = f"{n_nodes} × {node_size} GPUs: {ratio:.3g} × the bandwidth inside a node"
    if n_nodes == 1:
        title = f"One node of {node_size} GPUs"
    top = style.HEADER + (1.3 if n_nodes > 1 else 0.15)
    subtitle = "bandwidth of one link, one way;  α = what a message costs, however small"
    figure, page = sheet.new_page(top + _TALL + 0.85, title, subtitle)
    wide = min(3.4, (style.PAGE_WIDTH - 2 * style.MARGIN - (n_nodes - 1) * _GAP) / n_nodes)
    start = (style.PAGE_WIDTH - n_nodes * wide - (n_nodes - 1) * _GAP) / 2
    lefts = [start + node * (wide + _GAP) for node in range(n_nodes)]
    for node, x in enumerate(lefts):
        _draw_node(page, (x, top), wide, range(node * node_size, (node + 1) * node_size), n_nodes * node_size)
        marks.label(page, x + 0.2, top + 0.27, f"node {node}", align="left", bold=True)
    if n_nodes > 1:
        _draw_network(page, [x + wide / 2 for x in lefts], top, f"between nodes: {_words(between)}")
    under = f"inside a node: {_words(inside)}"
    marks.label(page, style.PAGE_WIDTH / 2, top + _TALL + 0.38, under, colour=style.COMMUNICATION, bold=True)
    return Picture(figure, title=title, description=_in_words(node_size, n_nodes, inside, between), kinds=["formula"])


def _check(node_size: int, n_nodes: int) -> None:
    if not (1 <= node_size <= _NODE_SIZES and 1 <= n_nodes <= _NODES):
        raise ValueError(
            four_parts(
                "plot_topology",
                f"node_size={node_size}, n_nodes={n_nodes}",
                f"a page holds 1 to {_NODES} nodes of 1 to {_NODE_SIZES} GPUs",
                "draw fewer; the links are the same",
            )
        )


def _draw_network(page: Axes, middles: list[float], top: float, text: str) -> None:
    """A bar that every node hangs on by a thin line."""
    y = style.HEADER + 0.36
    for x in middles:
        page.plot([x, x], [y, top], color=style.COMMUNICATION, linewidth=2, zorder=1)
    left = max(style.MARGIN, middles[0] - 1.9)
    width = style.PAGE_WIDTH - 2 * left
    marks.box(page, left, y - 0.19, width, 0.38, fill=style.COMMUNICATION, corner=0.19, zorder=2)
    marks.label(page, style.PAGE_WIDTH / 2, y, text, colour=style.WHITE_LETTERS, bold=True)


def _draw_node(page: Axes, at: tuple[float, float], wide: float, ranks: range, all_ranks: int) -> None:
    """A box with its GPUs, each joined to each other; beyond four they meet in a switch."""
    x, top = at
    marks.box(page, x, top, wide, _TALL, fill=style.PANEL, edge=style.FAINT, corner=0.14, zorder=1.5)
    across = len(ranks) if len(ranks) <= 2 else -(-len(ranks) // 2)
    rows = -(-len(ranks) // across)
    inset = 0.12
    pitch = (wide - 2 * inset) / across
    spots = [
        (x + inset + pitch * (i % across + 0.5), top + (0.86, 1.82)[i // across] if rows == 2 else top + 1.34)
        for i in range(len(ranks))
    ]
    if len(ranks) == 3:
        spots[2] = (x + wide / 2, spots[2][1])
    if len(ranks) <= 4:
        for (x0, y0), (x1, y1) in combinations(spots, 2):
            page.plot([x0, x1], [y0, y1], color=style.COMMUNICATION, linewidth=5, zorder=2)
    else:
        middle = top + 1.34
        for gpu_x, gpu_y in spots:
            page.plot([gpu_x, gpu_x], [gpu_y, middle], color=style.COMMUNICATION, linewidth=5, zorder=2)
        marks.box(page, x + 0.2, middle - 0.08, wide - 0.4, 0.16, fill=style.COMMUNICATION, corner=0.08, zorder=3)
    for rank, spot in zip(ranks, spots, strict=True):
        _draw_gpu(page, spot, rank, min(0.76, pitch - 0.08), own_hue=all_ranks <= LARGEST_PICTURE)


def _draw_gpu(page: Axes, at: tuple[float, float], rank: int, width: float, *, own_hue: bool) -> None:
    """A GPU with its rank: in the rank's hue while there is one for each, else on white."""
    x, y = at
    word = width > 0.7
    if own_hue:
        marks.rank_badge(page, x, y, rank, width=width, height=0.4, word=word)
        return
    marks.box(page, x - width / 2, y - 0.2, width, 0.4, edge=style.COMMUNICATION, line=1.2, corner=0.1, zorder=4)
    marks.label(page, x, y, f"rank {rank}" if word else str(rank), size=style.SMALL_SIZE, bold=True)


def _words(link: Link) -> str:
    rate = format_bytes(link.bandwidth_bytes_per_s, binary=False)
    return f"{link.name}, {rate}/s, α = {style.seconds(link.alpha_s)}"


def _in_words(node_size: int, n_nodes: int, inside: Link, between: Link) -> str:
    lines = [
        f"node {node}: ranks {', '.join(str(node * node_size + i) for i in range(node_size))}"
        for node in range(n_nodes)
    ]
    lines.append(f"inside a node: {_words(inside)}")
    if n_nodes > 1:
        lines.append(f"between nodes: {_words(between)}")
    return "\n".join(lines)
