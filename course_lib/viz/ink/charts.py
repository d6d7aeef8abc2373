"""What charts share: axes in bytes, counts and seconds, and text at a place."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log2, log10
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from course_lib.units import format_bytes
from course_lib.viz.ink import style


def algorithm_name(algorithm: str) -> str:
    """How a figure calls an algorithm; native is gloo or NCCL, whichever the ranks run on."""
    special = {"native": "PyTorch's own", "halving_doubling": "halving-doubling"}
    return special.get(algorithm, algorithm.replace("_", " "))


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
    plain = high / low < 1e4 or (low >= 1e-4 and high < 1e6)  # which "g" writes without an exponent
    form = "g" if plain else ".0e"  # not 0.0001 above 1e-05
    chart.yaxis.set_major_formatter(lambda value, _: f"{value:{form}}")
    chart.tick_params(axis="y", length=0, pad=6)
    centre_on_ticks(chart)


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


def _amount(value: float, name: str) -> str:
    return style.seconds(value) if name == "seconds" else format_bytes(value, binary=False) + "/s"
