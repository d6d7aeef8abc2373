"""Predicted time against message size: where the lines of the algorithms cross, and what none can beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from course_lib.costs import bandwidth_bound_s, comm_time, latency_bound_s
from course_lib.hardware import Link
from course_lib.units import format_bytes, format_seconds
from course_lib.viz.picture import Picture
from course_lib.viz.style import (
    ALGORITHM_HUES,
    BASE_SIZE,
    HEADER,
    INK,
    MARGIN,
    PAGE_WIDTH,
    SMALL_SIZE,
    chart_axes,
    course_style,
    new_page,
    text_on,
)

_LENGTHS = tuple(2**k for k in range(6, 31))  # elements of 2 bytes: 128 bytes to 2 GiB


def plot_cost_lines(algorithms: Sequence[str], *, world_size: int, link: Link) -> Picture:
    """Alpha-beta time of all-reduce algorithms against message size, the bounds, and the fastest at each size.

    Units: bytes of the whole tensor in bfloat16, seconds.
    """
    times = {name: _times(name, world_size, link) for name in algorithms}
    sizes = [2 * length for length in _LENGTHS]
    bound = _bounds(world_size, link, sizes)
    best = [min(times, key=lambda name: times[name][i]) for i in range(len(sizes))]
    height = 5.9
    with course_style():
        figure, _ = new_page(height, f"All-reduce on {world_size} ranks, predicted", link.name)
        chart = chart_axes(figure, MARGIN + 0.75, HEADER, PAGE_WIDTH - 2 * MARGIN - 3.0, height - HEADER - 1.35)
        _lines(chart, sizes, times)
        chart.plot(sizes, bound, color=INK, linewidth=1.5, linestyle=(0, (4, 3)))
        chart.annotate(
            "no algorithm is below", (sizes[9], bound[9]), (6, -16), textcoords="offset points", size=SMALL_SIZE
        )
        strip = chart_axes(figure, MARGIN + 0.75, height - 1.15, PAGE_WIDTH - 2 * MARGIN - 3.0, 0.36)
        _strip(strip, sizes, best)
    return Picture(
        figure, title=f"Predicted time of all-reduce on {world_size} ranks", description=_words(sizes, times, best)
    )


def _times(name: str, world_size: int, link: Link) -> list[float]:
    return [
        comm_time("all_reduce", name, world_size=world_size, length=length, itemsize=2).time_s(link)
        for length in _LENGTHS
    ]


def _bounds(world_size: int, link: Link, sizes: Sequence[int]) -> list[float]:
    latency_s = latency_bound_s(world_size=world_size, link=link)
    return [
        max(latency_s, bandwidth_bound_s("all_reduce", world_size=world_size, nbytes=size, link=link)) for size in sizes
    ]


def _lines(chart: Axes, sizes: Sequence[int], times: dict[str, list[float]]) -> None:
    """The lines, named at their right end from the slowest down."""
    for name, seconds in times.items():
        chart.plot(sizes, seconds, color=ALGORITHM_HUES[name], linewidth=3, solid_capstyle="round")
    chart.set(xscale="log", yscale="log", xlim=(sizes[0], sizes[-1]))
    chart.xaxis.set_visible(False)
    chart.yaxis.set_major_formatter(lambda value, _: format_seconds(value).replace("us", "µs"))
    chart.yaxis.set_major_locator(
        _decades(min(min(row) for row in times.values()), max(max(row) for row in times.values()))
    )
    chart.minorticks_off()
    low, high = np.log10(chart.get_ylim())
    heights = _apart([(np.log10(seconds[-1]) - low) / (high - low) for seconds in times.values()], least=0.085)
    for (name, _), height in zip(times.items(), heights, strict=True):
        chart.text(
            *(1.02, height, name.replace("_", " ")),
            color=ALGORITHM_HUES[name],
            weight="semibold",
            size=BASE_SIZE,
            va="center",
            transform=chart.transAxes,
        )


def _decades(low: float, high: float) -> FixedLocator:
    return FixedLocator([10.0**k for k in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)])


def _apart(heights: Sequence[float], least: float) -> list[float]:
    """The same heights, moved down where two are closer than `least`."""
    moved = list(heights)
    order = sorted(range(len(heights)), key=lambda i: -heights[i])
    for above, below in zip(order, order[1:], strict=False):
        moved[below] = min(moved[below], moved[above] - least)
    return moved


def _strip(strip: Axes, sizes: Sequence[int], best: Sequence[str]) -> None:
    """A band in the colour of the fastest algorithm at each size, over the axis of sizes."""
    for name, first, last in _runs(sizes, best):
        strip.axvspan(first, last, color=ALGORITHM_HUES[name], linewidth=0)
        middle = (first * last) ** 0.5
        label = f"fastest: {name.replace('_', ' ')}"
        strip.text(middle, 0.5, label, size=SMALL_SIZE, color=text_on(ALGORITHM_HUES[name]), ha="center", va="center")
    strip.set(xscale="log", xlim=(sizes[0], sizes[-1]), ylim=(0, 1), xlabel="bytes of the whole tensor, M")
    strip.set_xticks([2**k for k in range(10, 32, 5)])
    strip.xaxis.set_major_formatter(lambda value, _: format_bytes(value))
    strip.minorticks_off()
    strip.yaxis.set_visible(False)
    strip.grid(False)
    strip.spines[:].set_visible(False)


def _runs(sizes: Sequence[int], best: Sequence[str]) -> list[tuple[str, float, float]]:
    """(name, first size, last size) of each stretch in which one algorithm is the fastest."""
    edges = [0, *(i for i in range(1, len(best)) if best[i] != best[i - 1]), len(best)]
    border = [sizes[0], *((sizes[i - 1] * sizes[i]) ** 0.5 for i in edges[1:-1]), sizes[-1]]
    return [(best[i], border[k], border[k + 1]) for k, i in enumerate(edges[:-1])]


def _words(sizes: Sequence[int], times: dict[str, list[float]], best: Sequence[str]) -> str:
    at = {size: i for i, size in enumerate(sizes) if size in (2**10, 2**20, 2**30)}
    rows = [
        f"{name}: " + ", ".join(f"{format_seconds(seconds[i])} at {format_bytes(size)}" for size, i in at.items())
        for name, seconds in times.items()
    ]
    fastest = [f"{name} from {format_bytes(first)}" for name, first, _ in _runs(sizes, best)]
    return "; ".join([*rows, "fastest: " + ", ".join(fastest)])
