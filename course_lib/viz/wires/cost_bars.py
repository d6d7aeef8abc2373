"""What each algorithm makes each rank send: bars in multiples of the tensor, beside the formula of the busiest rank."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

from matplotlib.axes import Axes

from course_lib.costs.comm.collectives import ALGORITHMS, comm_time
from course_lib.errors import four_parts
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import check_picture_size

_RING = ("2(p − 1)/p · M", lambda p: 2 * (p - 1) / p)
_ONCE = ("(p − 1)/p · M", lambda p: (p - 1) / p)
_STAR = ("(p − 1) · M", lambda p: p - 1)
_LEVELS = ("ceil(log₂ p) · M", lambda p: ceil(log2(p)))
_WHOLE = ("M", lambda p: min(1, p - 1))
_ROUNDS = ("log₂ p · M", lambda p: log2(p))
# Bytes that the busiest rank sends when p divides the tensor; for the doubling algorithms p is a power of two.
FORMULAS: dict[tuple[str, str], tuple[str, Callable[[int], float]]] = {
    ("all_reduce", "naive"): _STAR,
    ("all_reduce", "ring"): _RING,
    ("all_reduce", "tree"): _LEVELS,
    ("all_reduce", "recursive_doubling"): _ROUNDS,
    ("all_reduce", "halving_doubling"): _RING,
    ("broadcast", "naive"): _STAR,
    ("broadcast", "tree"): _LEVELS,
    ("reduce", "naive"): _WHOLE,
    ("reduce", "tree"): _WHOLE,
    ("all_gather", "naive"): _ONCE,
    ("all_gather", "ring"): _ONCE,
    ("reduce_scatter", "naive"): _ONCE,
    ("reduce_scatter", "ring"): _ONCE,
    ("all_to_all", "pairwise"): _ONCE,
}
_LEFT, _RIGHT, _BLOCK, _GAP = 2.5, 2.1, 0.62, 0.26


@sheet.course_style()
def plot_cost_bars(operation: str = "all_reduce", world_size: int = 4) -> Picture:
    """Bytes that every rank sends under each algorithm, by `costs.comm_time`; M is the whole tensor.

    Raises: ValueError for an operation without such formulas, or more than 8 ranks.
    """
    check_picture_size("plot_cost_bars", world_size)
    algorithms = _drawable(operation, world_size)
    sent = {name: _sent(operation, name, world_size) for name in algorithms}
    title = f"{operation} on {world_size} ranks: what each one sends"
    height = style.HEADER + 0.5 + len(sent) * (_BLOCK + _GAP) + 0.62
    figure, page = sheet.new_page(height, title, "M = bytes of the whole tensor; beside the bars: the busiest rank")
    marks.label(page, style.MARGIN, style.HEADER + 0.14, "sent by", colour=style.SOFT, align="left")
    for rank in range(world_size):
        marks.rank_badge(page, _LEFT + 0.37 + 0.84 * rank, style.HEADER + 0.14, rank)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    chart = sheet.chart_axes(figure, _LEFT, style.HEADER + 0.5, width, len(sent) * (_BLOCK + _GAP))
    _draw_bars(chart, sent)
    for number, name in enumerate(sent):
        middle = style.HEADER + 0.5 + (number + 0.5) * (_BLOCK + _GAP)
        marks.label(page, style.MARGIN, middle, charts.algorithm_name(name), bold=True, align="left")
        marks.label(page, style.PAGE_WIDTH - style.MARGIN, middle, FORMULAS[operation, name][0], align="right")
    return Picture(figure, title=title, description=_in_words(operation, sent), kinds=["formula"])


def _drawable(operation: str, world_size: int) -> list[str]:
    two = world_size & (world_size - 1) == 0
    known = [name for name in ALGORITHMS.get(operation, ()) if (operation, name) in FORMULAS]
    if not known:
        raise ValueError(
            four_parts(
                "plot_cost_bars",
                f"operation={operation!r}",
                "bars need a formula for what the busiest rank sends",
                f"choose one of {', '.join(dict.fromkeys(operation for operation, _ in FORMULAS))}",
            )
        )
    return [name for name in known if two or "doubling" not in name]


def _sent(operation: str, algorithm: str, world_size: int) -> list[float]:
    """Multiples of the tensor that each rank sends."""
    cost = comm_time(operation, algorithm, world_size=world_size, length=world_size, itemsize=1)
    return [nbytes / world_size for nbytes in cost.sent_bytes]


def _draw_bars(chart: Axes, sent: dict[str, list[float]]) -> None:
    largest = max(max(row) for row in sent.values()) or 1
    for number, row in enumerate(sent.values()):
        thick = _BLOCK / len(row)
        tops = [number * (_BLOCK + _GAP) + _GAP / 2 + (rank + 0.5) * thick for rank in range(len(row))]
        hues = [style.rank_hue(rank) for rank in range(len(row))]
        chart.barh(tops, row, height=0.86 * thick, color=hues)
    chart.set(xlim=(0, largest * 1.02), ylim=(len(sent) * (_BLOCK + _GAP), 0), yticks=[])
    chart.xaxis.set_major_formatter(lambda value, _: f"{value:g} M" if value else "0")
    chart.grid(visible=False, axis="y")
    chart.tick_params(length=0, pad=6)


def _in_words(operation: str, sent: dict[str, list[float]]) -> str:
    lines = []
    for name, row in sent.items():
        cells = ", ".join(f"rank {rank} {share:.3g} M" for rank, share in enumerate(row))
        lines.append(f"  {charts.algorithm_name(name)}: {cells}; busiest {FORMULAS[operation, name][0]}")
    return "\n".join(lines)
