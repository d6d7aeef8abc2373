"""The same step run in several ways, one above the other on one time axis: how much of communication is hidden."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import covered_s
from course_lib.errors import four_parts
from course_lib.viz import marks, style
from course_lib.viz.keys import LINE, draw_key, lines_of
from course_lib.viz.picture import Picture
from course_lib.viz.timeline import COMMUNICATION, WAITING, Bar, draw_bars, key_of, kind_of, time_unit

_LEFT, _RIGHT, _LANE = 1.4, 1.8, 0.36  # inches: lane names, the step's end in words, one lane
_TOP, _PITCH = style.HEADER + 0.34, 2 * _LANE + 0.52
_MOST = 4
_COMPUTE_LANE, _NETWORK_LANE = 0, 1
_DIGITS = 9  # of a second: an emulated clock's rounding errors must not change the picture


@style.course_style()
def plot_overlap(
    timelines: Mapping[str, Ledger],
    *,
    rank: int = 0,
    title: str = "The same step on the same clock",
    subtitle: str = "",
) -> Picture:
    """What one rank computes, and below it what its network does, for each run; a line where the step ends on all.

    Time starts at the first event of each run. A bar on the network is one call, numbered where all numbers fit.
    Raises: ValueError for no runs or more than 4, a run without events, or a rank that a run does not have.
    """
    _check(timelines, rank)
    subtitle = subtitle or f"rank {rank}; the line is the end of the step on the slowest rank"
    runs = {name: _bars(ledger, rank) for name, ledger in timelines.items()}
    spans = {name: round(ledger.span_s, _DIGITS) for name, ledger in timelines.items()}
    scale, unit = time_unit(max(spans.values()))
    key = key_of([bar for bars in runs.values() for bar in bars])
    first = _TOP + LINE * (len(lines_of(key, _LEFT)) - 1)
    figure, page = style.new_page(first + len(runs) * _PITCH + 0.72, title, subtitle)
    draw_key(page, key, _LEFT)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    reach, slowest = max(spans.values()) * scale, next(iter(spans.values()))
    for number, (name, bars) in enumerate(runs.items()):
        top = first + number * _PITCH + 0.42
        axes = style.chart_axes(figure, _LEFT, top, width, 2 * _LANE)
        _prepare_lanes(axes, spans[name] * scale, reach, unit if number == len(runs) - 1 else "")
        _name_run(page, top - 0.16, name, bars)
        for what in sorted({bar.what for bar in bars}):
            draw_bars(axes, [bar for bar in bars if bar.what == what], 0.0, scale)
        _number_calls(axes, bars, scale, width / reach)
        axes.axvline(spans[name] * scale, -0.12, 1.12, color=style.INK, linewidth=2.2, clip_on=False, zorder=4)
        faster = f"{slowest / spans[name]:.3g} × as fast" if number else ""
        _name_end(axes, spans[name] * scale, f"{spans[name] * scale:.3g} {unit}", faster)
    kinds = dict.fromkeys(map(kind_of, timelines.values()))
    return Picture(figure, title=title, description=_in_words(runs, spans, subtitle), kinds=[*kinds])


def _check(timelines: Mapping[str, Ledger], rank: int) -> None:
    if not 1 <= len(timelines) <= _MOST:
        values, rule = f"{len(timelines)} timelines", f"this picture holds 1 to {_MOST}"
        raise ValueError(four_parts("plot_overlap", values, rule, "draw two pictures"))
    for name, ledger in timelines.items():
        if not ledger.events or not 0 <= rank < ledger.world_size:
            values = f"{name!r} has {len(ledger.events)} events on {ledger.world_size} ranks, rank={rank}"
            rule = "a timeline needs events, and the rank that is drawn"
            raise ValueError(four_parts("plot_overlap", values, rule, "pass ledger() of a run that had this rank"))


def _bars(ledger: Ledger, rank: int) -> list[Bar]:
    """Seconds since the run's first event: computing, the waiting between it, and one bar for each call."""
    origin = ledger.events[0].start_s
    compute: list[Bar] = []
    calls: dict[int, tuple[float, float]] = {}
    for event in ledger.events:
        if event.rank != rank:
            continue
        start, end = round(event.start_s - origin, _DIGITS), round(event.end_s - origin, _DIGITS)
        if event.kind == "compute":
            compute.append(Bar(_COMPUTE_LANE, event.operation or "compute", start, end, 0.08, 0.92))
        else:
            first, last = calls.get(event.call, (start, end))
            calls[event.call] = (min(first, start), max(last, end))
    network = [Bar(_NETWORK_LANE, COMMUNICATION, start, end, 0.08, 0.92) for start, end in sorted(calls.values())]
    return [*compute, *_waiting(compute, max((bar.end_s for bar in [*compute, *network]), default=0.0)), *network]


def _waiting(compute: list[Bar], end: float) -> list[Bar]:
    """The gaps between computing, up to the rank's own end."""
    bars, reached = [], 0.0
    for start, stop in [*((bar.start_s, bar.end_s) for bar in compute), (end, end)]:
        if start > reached:
            bars.append(Bar(_COMPUTE_LANE, WAITING, reached, start, 0.3, 0.7))
        reached = max(reached, stop)
    return bars


def _prepare_lanes(axes: Axes, end: float, reach: float, unit: str) -> None:
    """Two lanes up to the step's end; the last panel, which gets a unit, writes the axis that all share."""
    axes.set(xlim=(0, reach), ylim=(2, 0), yticks=[])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=8, labelbottom=bool(unit))
    if unit:
        axes.set_xlabel(f"time since the step began ({unit})", labelpad=6)
    for lane, name in ((_COMPUTE_LANE, "compute"), (_NETWORK_LANE, "network")):
        axes.add_patch(Rectangle((0, lane + 0.03), end, 0.94, facecolor=style.PANEL, zorder=1))
        _write(axes, name, (0, lane + 0.5), right=-10, ha="right", color=style.SOFT)


def _write(
    axes: Axes, text: str, at: tuple[float, float], *, right: float = 0.0, down: float = 0.0, **look: Any
) -> None:
    """Small text, its capitals centred on a place of the axes, or some points beside it."""
    look = {"size": style.SMALL_SIZE, "va": "baseline", "annotation_clip": False, **look}
    place = (right, -down - 72 * style.HALF_CAP * look["size"])
    axes.annotate(text, at, xytext=place, textcoords="offset points", **look)


def _name_run(page: Axes, y: float, name: str, bars: list[Bar]) -> None:
    """What the run is called, and how many calls its network made."""
    marks.label(page, _LEFT, y, name, bold=True, align="left")
    x = _LEFT + style.text_width(name, weight=600) + 0.16
    marks.label(page, x, y, _calls(bars), size=style.SMALL_SIZE, colour=style.SOFT, align="left")


def _calls(bars: list[Bar]) -> str:
    count = sum(bar.what == COMMUNICATION for bar in bars)
    return f"{count} call{'s' * (count != 1)}"


def _number_calls(axes: Axes, bars: list[Bar], scale: float, inches: float) -> None:
    """From 1, if every number fits its bar."""
    calls = [bar for bar in bars if bar.what == COMMUNICATION]
    widest = style.text_width(str(len(calls)), style.SMALL_SIZE)
    if all((bar.end_s - bar.start_s) * scale * inches > widest + 0.08 for bar in calls):
        for number, bar in enumerate(calls, start=1):
            place = ((bar.start_s + bar.end_s) / 2 * scale, _NETWORK_LANE + 0.5)
            _write(axes, str(number), place, ha="center", color=style.PAPER, zorder=5)


def _name_end(axes: Axes, end: float, time: str, faster: str) -> None:
    """Right of the line: when the step ends, and how that compares with the first run."""
    ground = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5}
    look: dict[str, Any] = {"right": 10, "bbox": ground, "zorder": 5}
    _write(axes, time, (end, 1), down=-9.5 * bool(faster), weight=600, size=style.BASE_SIZE, **look)
    if faster:
        _write(axes, faster, (end, 1), down=10, color=style.SOFT, **look)


def _covered(bars: Iterable[Bar]) -> float:
    return covered_s((bar.start_s, bar.end_s) for bar in bars)


def _in_words(runs: Mapping[str, list[Bar]], spans: Mapping[str, float], subtitle: str) -> str:
    """For each run: the step's time, and what it is made of on this rank."""
    lines = [subtitle]
    for name, bars in runs.items():
        compute = [bar for bar in bars if bar.what not in (WAITING, COMMUNICATION)]
        network = [bar for bar in bars if bar.what == COMMUNICATION]
        hidden = _covered(compute) + _covered(network) - _covered([*compute, *network])
        waiting = _covered(bar for bar in bars if bar.what == WAITING)
        calls = f"{_calls(bars)} {style.seconds(_covered(network))}"
        lines.append(
            f"  {name}: step {style.seconds(spans[name])}; computes {style.seconds(_covered(compute))}, waits "
            f"{style.seconds(waiting)}; {calls}, of them {style.seconds(round(hidden, _DIGITS))} while computing"
        )
    return "\n".join(lines)
