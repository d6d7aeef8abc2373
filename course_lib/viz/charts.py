"""What charts over message sizes share: axes in bytes and seconds, and names beside the lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log2, log10
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from course_lib.units import format_bytes
from course_lib.viz import style

_NAME_GAP = 0.03  # of the chart's width, between a line's end and its name


def algorithm_name(algorithm: str) -> str:
    """How a figure calls an algorithm; native is gloo or NCCL, whichever the ranks run on."""
    return "PyTorch's own" if algorithm == "native" else algorithm.replace("_", " ")


def size_axis(chart: Axes, sizes: Sequence[int], label: str = "bytes of the whole tensor") -> None:
    """Powers of two of bytes along the bottom, at most eight of them named."""
    chart.set_xscale("log", base=2)
    low, high = floor(log2(min(sizes))), ceil(log2(max(sizes)))
    every = max(1, ceil((high - low) / 7))
    chart.set_xlim(2 ** (log2(min(sizes)) - 0.4), 2 ** (log2(max(sizes)) + 0.4))
    chart.xaxis.set_major_locator(FixedLocator([2.0**k for k in range(low, high + 1, every)]))
    chart.xaxis.set_minor_locator(NullLocator())
    chart.xaxis.set_major_formatter(lambda size, _: format_bytes(size))
    chart.tick_params(axis="x", length=0, pad=6)
    chart.set_xlabel(label, labelpad=8)


def count_axis(chart: Axes, counts: Sequence[int], label: str) -> None:
    """Counts along the bottom, each power of two as far from the next; at most ten of them named."""
    chart.set_xscale("log", base=2)
    named = sorted(set(counts))
    chart.set_xlim(named[0] / 1.15, named[-1] * 1.15)
    chart.xaxis.set_major_locator(FixedLocator([float(n) for n in named[:: ceil(len(named) / 10)]]))
    chart.xaxis.set_minor_locator(NullLocator())
    chart.xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    chart.tick_params(axis="x", length=0, pad=6)
    chart.set_xlabel(label, labelpad=8)


def value_axis(chart: Axes, values: Sequence[float], name: str) -> None:
    """Decades up the side; 2 and 5 as well where there would be too few. `name` is "seconds" or "bytes/s"."""
    chart.set_yscale("log")
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    factors = (1, 2, 5) if log10(max(values) / min(values)) < 1.7 else (1,)
    chart.yaxis.set_major_locator(FixedLocator([f * 10.0**k for k in range(low - 1, high + 1) for f in factors]))
    chart.yaxis.set_minor_locator(NullLocator())
    chart.yaxis.set_minor_formatter(NullFormatter())
    chart.set_ylim(min(values) / 1.4, max(values) * 1.4)
    chart.yaxis.set_major_formatter(lambda value, _: _amount(value, name))
    chart.tick_params(axis="y", length=0, pad=6)
    centre_on_ticks(chart)


def number_axis(chart: Axes, values: Sequence[float], most: int) -> None:
    """Positive numbers up the side on a log scale: decades, with 2 and 5 as well where those are at most `most`."""
    chart.set_yscale("log")
    chart.set_ylim(min(values) / 1.4, max(values) * 1.4)
    low, high = chart.get_ylim()
    ticks = [f * 10.0**k for k in range(floor(log10(low)), ceil(log10(high)) + 1) for f in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= tick <= high]
    chart.yaxis.set_major_locator(FixedLocator(shown if len(shown) <= most else ticks[::3]))
    chart.yaxis.set_minor_locator(NullLocator())
    chart.yaxis.set_minor_formatter(NullFormatter())
    chart.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    chart.tick_params(axis="y", length=0, pad=6)
    centre_on_ticks(chart)


def name_lines(chart: Axes, ends: Mapping[str, float], least: float) -> None:
    """Write each algorithm's name right of the chart, at its line's end or joined to it; `least` is of the height."""
    low, high = (log10(limit) for limit in chart.get_ylim())
    heights = {name: (log10(end) - low) / (high - low) for name, end in ends.items()}
    name_heights(chart, [(algorithm_name(n), style.ALGORITHM_HUES[n], height) for n, height in heights.items()], least)


def name_heights(chart: Axes, names: Sequence[tuple[str, str, float]], least: float) -> None:
    """Write (name, hue, height) right of the chart, `least` apart; all heights are of the chart's own."""
    heights = apart([true for _, _, true in names], least)
    for (name, hue, true), height in zip(names, heights, strict=True):
        leader = ([0.995, 0.2 * _NAME_GAP + 0.995, 0.9 * _NAME_GAP + 1], [true, true, height])
        chart.plot(*leader, color=hue, linewidth=1, clip_on=False, transform=chart.transAxes, zorder=1)
        write(chart, 1 + 1.2 * _NAME_GAP, height, name, color=hue, weight=600)


def draw_line(chart: Axes, line: Mapping[int, float], hue: str) -> None:
    """What was predicted."""
    counts = sorted(line)
    heights = [line[n] for n in counts]
    chart.plot(counts, heights, color=hue, linewidth=3, solid_capstyle="round", zorder=2)


def draw_marks(chart: Axes, line: Mapping[int, float], hue: str, number: int) -> None:
    """What was measured; of marks upon each other the later ones, by `number`, are smaller, so that all are seen."""
    counts = sorted(line)
    heights = [line[n] for n in counts]
    look: dict[str, Any] = {"marker": "o", "markersize": 12 - 1.6 * number, "markeredgewidth": 1.2}
    look |= {"markeredgecolor": style.PAPER, "color": hue, "linestyle": "none"}
    chart.plot(counts, heights, zorder=3, clip_on=False, **look)


def name_marks(chart: Axes, line: Mapping[int, float], name: str, hue: str) -> None:
    """Beside the last mark, on a ground that hides the grid."""
    ground = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5}
    place = (11, -72 * style.HALF_CAP * style.BASE_SIZE)
    at = (max(line), line[max(line)])
    chart.annotate(
        name, at, xytext=place, textcoords="offset points", va="baseline", color=hue, weight=600, bbox=ground
    )


def height_of(chart: Axes, value: float) -> float:
    """Where a value lies on the chart's vertical axis: 0 at its foot, 1 at its top."""
    across = chart.get_xlim()[0]
    return float(chart.transLimits.transform(chart.transScale.transform((across, value)))[1])


def write(
    chart: Axes,
    x: float,
    y: float,
    text: str,
    *,
    within: Literal["axes fraction", "data"] = "axes fraction",
    right: float = 0.0,
    down: float = 0.0,
    **look: Any,
) -> None:
    """Text at a place of the chart, in its own fractions or its data, its capitals centred on `y`.

    `right` and `down` move it by points.
    """
    lower = -down - style.HALF_CAP * 72 * look.get("size", style.BASE_SIZE)
    places: dict[str, Any] = {"xycoords": within, "xytext": (right, lower), "textcoords": "offset points"}
    chart.annotate(text, (x, y), va="baseline", annotation_clip=False, **places, **look)


def centre_on_ticks(chart: Axes) -> None:
    """Put the labels up the side level with their grid lines; matplotlib leaves them a little low."""
    lift = ScaledTranslation(0, 0.1 * style.SMALL_SIZE / 72, chart.figure.dpi_scale_trans)
    for name in chart.yaxis.get_majorticklabels():
        name.set_transform(name.get_transform() + lift)


def apart(heights: Sequence[float], least: float) -> list[float]:
    """The same heights in the same order, moved as little as keeps all of them `least` apart and within 0 to 1."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = [heights[i] for i in order]
    for _ in range(100):
        for i in range(len(moved) - 1):
            lacking = least - (moved[i + 1] - moved[i])
            if lacking > 0:
                moved[i] -= lacking / 2
                moved[i + 1] += lacking / 2
        shift = max(0.0, -moved[0]) - max(0.0, moved[-1] - 1)
        moved = [height + shift for height in moved]
    return [moved[order.index(i)] for i in range(len(heights))]


def _amount(value: float, name: str) -> str:
    return style.seconds(value) if name == "seconds" else format_bytes(value, binary=False) + "/s"
