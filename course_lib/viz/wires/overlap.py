"""The same step run in several ways, one above the other on one time axis: how much of communication is hidden."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import call_times, covered_s
from course_lib.errors import four_parts
from course_lib.viz.ink import charts, marks, sheet, style
from course_lib.viz.ink.clock import DIGITS, time_unit
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import LINE, draw_key, lines_of
from course_lib.viz.ink.lanes import Place, Span, draw_ground, prepare_lanes, write_texts
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.timeline import COMMUNICATION, WAITING, draw_kind, key_of, kind_of

_LEFT, _RIGHT, _LANE = 1.4, 1.8, 0.36  # inches: lane names, the step's end in words, one lane
_TOP, _PITCH = style.HEADER + 0.34, 2 * _LANE + 0.52
_MOST = 4
_COMPUTE_LANE, _NETWORK_LANE = 0, 1
_NAMES = ("compute", "network")
_FULL: Place = (0.08, 0.92)
_WAITING: Place = (0.3, 0.7)


@sheet.course_style()
def plot_overlap(
    timelines: Mapping[str, Ledger],
    *,
    rank: int = 0,
    calls: Sequence[str] = (),
    title: str = "The same step on the same clock",
    subtitle: str = "",
) -> Picture:
    """What one rank computes, and below it what its network does, for each run; a line where the step ends on all.

    Time starts at the first event of each run. A bar on the network is one call, numbered where all numbers fit;
    `calls` says what these numbers are.
    Raises: ValueError for no runs or more than 4, a run without events, or a rank that a run does not have.
    """
    _check(timelines, rank)
    subtitle = subtitle or f"rank {rank}; the line is the end of the step on the slowest rank"
    runs = {name: _spans(ledger, rank) for name, ledger in timelines.items()}
    ends = {name: round(ledger.span_s, DIGITS) for name, ledger in timelines.items()}
    factor, unit = time_unit(max(ends.values()))
    key = key_of([span for spans in runs.values() for span in spans])
    key += [Entry("; ".join(f"bar {number}: {name}" for number, name in enumerate(calls, start=1)))] if calls else []
    first = _TOP + LINE * (len(lines_of(key, _LEFT)) - 1)
    figure, page = sheet.new_page(first + len(runs) * _PITCH + 0.72, title, subtitle)
    draw_key(page, key, _LEFT)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    reach, first_end = max(ends.values()) * factor, next(iter(ends.values()))
    for number, (name, spans) in enumerate(runs.items()):
        top = first + number * _PITCH + 0.42
        axes = sheet.chart_axes(figure, _LEFT, top, width, 2 * _LANE)
        label = f"time since the run began ({unit})" if number == len(runs) - 1 else ""
        prepare_lanes(axes, _NAMES, reach, label, gap=10, pad=8, size=style.SMALL_SIZE, color=style.SOFT)
        end = ends[name] * factor
        draw_ground(axes, len(_NAMES), end, (0.03, 0.97), style.PANEL)
        _name_run(page, top - 0.16, name, spans)
        for what in sorted({span.what for span in spans}):
            place = _WAITING if what == WAITING else _FULL
            draw_kind(axes, [span for span in spans if span.what == what], factor, place)
        bars = [span for span in spans if span.what == COMMUNICATION]
        write_texts(axes, bars, factor, _FULL, width / reach, room=0.08, colour=style.WHITE_LETTERS)
        axes.axvline(end, -0.12, 1.12, color=style.INK, linewidth=2.2, clip_on=False, zorder=4)
        _name_end(axes, end, f"{end:.3g} {unit}", _compared(ends[name], first_end) if number else "")
    kinds = dict.fromkeys(map(kind_of, timelines.values()))
    said = "; ".join([subtitle, *(entry.text for entry in key if not entry.hues)])
    return Picture(figure, title=title, description=_in_words(runs, ends, said), kinds=[*kinds])


def _check(timelines: Mapping[str, Ledger], rank: int) -> None:
    if not 1 <= len(timelines) <= _MOST:
        values, rule = f"{len(timelines)} timelines", f"this picture holds 1 to {_MOST}"
        raise ValueError(four_parts("plot_overlap", values, rule, "draw two pictures"))
    for name, ledger in timelines.items():
        if not ledger.events or not 0 <= rank < ledger.world_size:
            values = f"{name!r} has {len(ledger.events)} events on {ledger.world_size} ranks, rank={rank}"
            rule = "a timeline needs events, and the rank that is drawn"
            raise ValueError(four_parts("plot_overlap", values, rule, "pass ledger() of a run that had this rank"))


def _spans(ledger: Ledger, rank: int) -> list[Span]:
    """Seconds since the run's first event: computing, the waiting between it, and each call with its number."""
    origin = ledger.events[0].start_s
    mine = [event for event in ledger.events if event.rank == rank]

    def times(start_s: float, end_s: float) -> tuple[float, float]:
        return round(start_s - origin, DIGITS), round(end_s - origin, DIGITS)

    compute = [
        Span(_COMPUTE_LANE, event.operation or "compute", *times(event.start_s, event.end_s))
        for event in mine
        if event.kind == "compute"
    ]
    calls = sorted(times(*ends) for ends in call_times(mine).values())
    network = [Span(_NETWORK_LANE, COMMUNICATION, *ends, str(number)) for number, ends in enumerate(calls, start=1)]
    return [*compute, *_waiting(compute, max((span.end_s for span in [*compute, *network]), default=0.0)), *network]


def _waiting(compute: Sequence[Span], end: float) -> list[Span]:
    """The gaps between computing, up to the rank's own end."""
    gaps, reached = [], 0.0
    for start, stop in [*((span.start_s, span.end_s) for span in compute), (end, end)]:
        if start > reached:
            gaps.append(Span(_COMPUTE_LANE, WAITING, reached, start))
        reached = max(reached, stop)
    return gaps


def _name_run(page: Axes, y: float, name: str, spans: Sequence[Span]) -> None:
    """What the run is called, and how many calls its network made."""
    marks.label(page, _LEFT, y, name, bold=True, align="left")
    x = _LEFT + sheet.text_width(name, weight=600) + 0.16
    marks.label(page, x, y, _calls(spans), size=style.SMALL_SIZE, colour=style.SOFT, align="left")


def _calls(spans: Sequence[Span]) -> str:
    count = sum(span.what == COMMUNICATION for span in spans)
    return f"{count} call{'s' * (count != 1)}"


def _compared(end: float, first_end: float) -> str:
    """The larger of the two ways to say it, since 0.8 times as fast is hard to read."""
    return f"{first_end / end:.3g} × as fast" if end <= first_end else f"{end / first_end:.3g} × as long"


def _name_end(axes: Axes, end: float, time: str, compared: str) -> None:
    """Right of the line: when the step ends, and how that compares with the first run."""
    look: dict[str, Any] = {"within": "data", "right": 10, "zorder": 5}
    charts.write(axes, end, 1, time, down=-9.5 * bool(compared), weight=600, size=style.BASE_SIZE, **look)
    if compared:
        charts.write(axes, end, 1, compared, down=10, color=style.SOFT, size=style.SMALL_SIZE, **look)


def _covered(spans: Iterable[Span]) -> float:
    return covered_s((span.start_s, span.end_s) for span in spans)


def _in_words(runs: Mapping[str, list[Span]], ends: Mapping[str, float], subtitle: str) -> str:
    """For each run: the step's time, and what it is made of on this rank."""
    lines = [subtitle]
    for name, spans in runs.items():
        compute = [span for span in spans if span.what not in (WAITING, COMMUNICATION)]
        network = [span for span in spans if span.what == COMMUNICATION]
        hidden = _covered(compute) + _covered(network) - _covered([*compute, *network])
        waiting = _covered(span for span in spans if span.what == WAITING)
        calls = f"{_calls(spans)} {style.seconds(_covered(network))}"
        lines.append(
            f"  {name}: step {style.seconds(ends[name])}; computes {style.seconds(_covered(compute))}, waits "
            f"{style.seconds(waiting)}; {calls}, of them {style.seconds(round(hidden, DIGITS))} while computing"
        )
    return "\n".join(lines)
