"""Memory against time: every policy that is possible, and those that nothing beats in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from course_lib.errors import four_parts
from course_lib.planner.policy_search import Found, policy_name
from course_lib.units import GiB, format_bytes
from course_lib.viz.ink import charts, sheet, style
from course_lib.viz.ink.picture import Picture

_LEFT, _RIGHT, _HEIGHT = style.MARGIN + 0.75, 0.6, 5.9
_MOST, _DOT = 3000, 3.2  # dots: more hide each other; points of one
_LINE = style.RUN_HUES[1]


@sheet.course_style()
def plot_policy_front(found: Found, *, slowest: float = 2.0, named: Mapping[str, int] | None = None) -> Picture:
    """A mark for each policy whose step takes at most `slowest` times the fastest's; the Pareto front as a line.

    `named` says which policies have a ring and their names, by index, in ink if they lie off the front; else the
    fastest one and the front's other end. Of very many policies as many as a page can hold are drawn, evenly over
    their order. Units: GiB, seconds.
    Raises: ValueError for a search that found nothing.
    """
    if found.nearest:
        rule = "a front is of policies that are possible"
        raise ValueError(four_parts("plot_policy_front", "no policy", rule, "look at found.nearest"))
    front = found.front(slowest)
    shown = np.flatnonzero(found.step_s <= slowest * found.step_s[0])
    drawn = shown[:: -(-len(shown) // _MOST)]
    title = f"{found.job.model.name} on {found.job.cluster.n_gpus:,} GPUs: memory against time"
    reach = f"at most {slowest:g} times as slow as the fastest"
    subtitle = f"dots: {len(drawn):,} of {len(found):,} layouts, {reach}; line: unbeaten in both"
    figure, _ = sheet.new_page(_HEIGHT, title, subtitle)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    chart = sheet.chart_axes(figure, _LEFT, style.HEADER + 0.42, width, _HEIGHT - style.HEADER - 1.35)
    _prepare(chart, found, slowest)
    memory, step_s = found.memory_bytes / GiB, found.step_s
    _draw_dots(chart, memory[drawn], step_s[drawn])
    chart.step(memory[front], step_s[front], where="post", color=_LINE, linewidth=2.2, zorder=3)
    chart.plot(memory[front], step_s[front], "o", markersize=6, color=_LINE, zorder=4)
    named = named or {"fastest": front[-1], "least memory here": front[0]}
    for name, index in named.items():
        _name(chart, found, name, index, on_front=index in front)
    return Picture(figure, title=title, description=_in_words(found, front, named), kinds=["formula"])


def _prepare(chart: Axes, found: Found, slowest: float) -> None:
    room, fastest = found.job.room_bytes / GiB, float(found.step_s[0])
    chart.set_xlim(0, 1.06 * room)
    chart.set_ylim(fastest * (1 - 0.09 * slowest), fastest * slowest * 1.02)
    chart.axvline(room, color=style.SOFT, linewidth=1.5, linestyle=(0, (4, 3)), zorder=1)
    chart.tick_params(length=0, pad=6)
    chart.set_xlabel(f"GiB on the fullest GPU; dashed: the {room:.1f} that a plan may fill", labelpad=8)
    charts.write(chart, 0, 1.06, "seconds of a step", color=style.SOFT)
    charts.centre_on_ticks(chart)


def _draw_dots(chart: Axes, x: Any, y: Any) -> None:
    """All as one path, of lines without length whose round ends are the dots: a mark for each makes a large file."""
    ends = np.repeat(np.column_stack([x, y]), 2, axis=0)
    path = Path(ends, np.tile([Path.MOVETO, Path.LINETO], len(x)))
    chart.add_patch(PathPatch(path, edgecolor=style.IDLE, linewidth=_DOT, capstyle="round", snap=False, zorder=2))


def _name(chart: Axes, found: Found, name: str, index: int, *, on_front: bool) -> None:
    """A ring, and beside it the name, on the side on which there is room: never towards the front."""
    hue = _LINE if on_front else style.INK
    x, y = found.memory_bytes[index] / GiB, float(found.step_s[index])
    ring: dict[str, Any] = {"markerfacecolor": style.PAPER, "markeredgecolor": hue, "markeredgewidth": 2.4}
    chart.plot(x, y, "o", markersize=9, zorder=5, **ring)
    left = x > chart.get_xlim()[1] / 2
    side: dict[str, Any] = {"ha": "right", "right": -10} if left else {"ha": "left", "right": 10}
    down = 14 if left and on_front else -12
    charts.write(chart, x, y, name, within="data", down=down, color=hue, weight=600, **side)


def _in_words(found: Found, front: list[int], named: Mapping[str, int]) -> str:
    lines = ["what nothing beats in both, from the least memory on"]
    lines += [f"  {_point_in_words(found, index)}" for index in front]
    lines += [f"{name}: {_point_in_words(found, index)}" for name, index in named.items()]
    return "\n".join(lines)


def _point_in_words(found: Found, index: int) -> str:
    memory, step_s = format_bytes(found.memory_bytes[index]), style.seconds(float(found.step_s[index]))
    return f"{memory}, {step_s}: {policy_name(found.policies, index)}"
