"""Predicted time against message size: where the lines of the algorithms cross, and what none can beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from course_lib.costs.comm.bounds import bandwidth_bound_s, latency_bound_s
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.crossing import crossing_bytes
from course_lib.hardware import Link
from course_lib.units import format_bytes
from course_lib.viz.ink import charts, sheet, style
from course_lib.viz.ink.lines import algorithm_line, draw_dashed, draw_line, name_ends
from course_lib.viz.ink.picture import Picture

_LENGTHS = tuple(2**k for k in range(6, 31))  # elements of 2 bytes: 128 bytes to 2 GiB
_SIZES = tuple(2 * length for length in _LENGTHS)
_Run = tuple[str, float, float]  # the fastest algorithm, from which size to which
_LEFT, _RIGHT, _HEIGHT = style.MARGIN + 0.85, 2.5, 5.625


@sheet.course_style()
def plot_cost_lines(algorithms: Sequence[str], *, world_size: int, link: Link) -> Picture:
    """Alpha-beta time of all-reduce algorithms against message size, the bounds, and the fastest at each size.

    Units: bytes of the whole tensor in bfloat16, seconds.
    """
    times = {name: _times(name, world_size, link) for name in algorithms}
    bound = _bounds(world_size, link)
    best = [min(times, key=lambda name: times[name][i]) for i in range(len(_SIZES))]
    fastest = _runs(best, world_size, link)
    title = f"All-reduce on {world_size} ranks: predicted time"
    rate = format_bytes(link.bandwidth_bytes_per_s, binary=False)
    subtitle = (
        f"{link.name}: α = {style.seconds(link.alpha_s)} per step, 1/β = {rate}/s; dashed: ranks alone cannot be faster"
    )
    figure, _ = sheet.new_page(_HEIGHT, title, subtitle)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    chart = sheet.chart_axes(figure, _LEFT, style.HEADER + 0.08, width, _HEIGHT - style.HEADER - 1.58)
    _draw_lines(chart, times, bound)
    strip = sheet.chart_axes(figure, _LEFT, _HEIGHT - 1.42, width, 0.36)
    _draw_fastest(strip, fastest, width)
    charts.write(strip, 1.036, 0.5, "fastest", color=style.SOFT)
    return Picture(figure, title=title, description=_in_words(times, bound, fastest, subtitle), kinds=["formula"])


def _times(name: str, world_size: int, link: Link) -> list[float]:
    return [
        comm_time("all_reduce", name, world_size=world_size, length=length, itemsize=2).time_s(link)
        for length in _LENGTHS
    ]


def _bounds(world_size: int, link: Link) -> list[float]:
    latency_s = latency_bound_s(world_size=world_size, link=link)
    return [
        max(latency_s, bandwidth_bound_s("all_reduce", world_size=world_size, nbytes=size, link=link))
        for size in _SIZES
    ]


def _draw_lines(chart: Axes, times: dict[str, list[float]], bound: list[float]) -> None:
    charts.value_axis(chart, [*bound, *(second for row in times.values() for second in row)], "seconds")
    charts.size_axis(chart, _SIZES, label="")
    chart.set_xlim(_SIZES[0], _SIZES[-1])
    chart.tick_params(labelbottom=False)
    drawn = [algorithm_line(name, dict(zip(_SIZES, row, strict=True))) for name, row in times.items()]
    for line in drawn:
        draw_line(chart, line)
    draw_dashed(chart, dict(zip(_SIZES, bound, strict=True)), style.INK, zorder=2)
    name_ends(chart, drawn, least=0.095)


def _draw_fastest(strip: Axes, fastest: Sequence[_Run], width: float) -> None:
    """A band in the colour of the fastest algorithm at each size, over the axis of sizes; `width` is in inches."""
    charts.size_axis(strip, _SIZES, label="bytes of the whole tensor, M")
    strip.set(xlim=(_SIZES[0], _SIZES[-1]), ylim=(0, 1), yticks=[])
    for name, first, last in fastest:
        hue = style.ALGORITHM_HUES[name]
        strip.axvspan(first, last, color=hue, linewidth=0)
        here, there = (
            strip.transAxes.inverted().transform(strip.transData.transform((x, 0)))[0] for x in (first, last)
        )
        text = charts.algorithm_name(name)
        if sheet.text_width(text, style.SMALL_SIZE, 600) + 0.1 < (there - here) * width:
            look: dict[str, Any] = {"size": style.SMALL_SIZE, "weight": 600, "ha": "center"}
            charts.write(strip, (here + there) / 2, 0.5, text, color=style.text_on(hue), **look)
    strip.grid(False)
    strip.spines[:].set_visible(False)


def _runs(best: Sequence[str], world_size: int, link: Link) -> list[_Run]:
    """Each stretch in which one algorithm is the fastest; two of them meet where their lines cross."""
    edges = [0, *(i for i in range(1, len(best)) if best[i] != best[i - 1]), len(best)]
    border = [float(_SIZES[0])]
    for i in edges[1:-1]:
        met = crossing_bytes(best[i - 1], best[i], world_size=world_size, link=link)
        border.append(min(max(met or 0.0, _SIZES[i - 1]), _SIZES[i]))  # tiny tensors have no equal chunks
    border.append(float(_SIZES[-1]))
    return [(best[i], border[k], border[k + 1]) for k, i in enumerate(edges[:-1])]


def _in_words(times: dict[str, list[float]], bound: Sequence[float], fastest: Sequence[_Run], subtitle: str) -> str:
    at = [_SIZES.index(size) for size in (2**10, 2**20, 2**30)]

    def row(seconds: Sequence[float]) -> str:
        return ", ".join(f"{style.seconds(seconds[i])} at {format_bytes(_SIZES[i])}" for i in at)

    lines = [subtitle.split(";")[0]]
    lines += [f"  {charts.algorithm_name(name)}: {row(seconds)}" for name, seconds in times.items()]
    lines.append(f"  no algorithm is below: {row(bound)}")
    runs = [f"{charts.algorithm_name(name)} from {format_bytes(first)}" for name, first, _ in fastest]
    return "\n".join([*lines, "  fastest: " + ", ".join(runs)])
