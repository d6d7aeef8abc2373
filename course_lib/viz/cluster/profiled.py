"""What torch's profiler saw on one rank: when it computed, when it communicated, and what of that nothing hid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.gauges.exposed import Events, Spans, exposed, sorted_out, spans_of, without
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.clock import time_unit
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import draw_key
from course_lib.viz.ink.lanes import Span, draw_ground, draw_spans, prepare_lanes
from course_lib.viz.ink.picture import Picture

_LEFT, _LANE, _PITCH = 1.95, 0.42, 1.44  # inches: lane names, a lane, a run
_TOP, _ABOVE = style.HEADER + 0.36, 0.36  # from the page's top to the first run, from a run's name to its lanes
_MOST = 3
_LANES = ("computation", "communication")
_KEY = {
    "computation": style.OTHER_COMPUTE,
    "communication, hidden": style.COMMUNICATION,
    "communication, exposed": style.WRONG,
}


class _Profiled(NamedTuple):
    """Spans in seconds since the first of them; how long they take, and what is said of them."""

    spans: dict[str, list[Span]]
    end_s: float
    words: str


@sheet.course_style()
def plot_trace(traces: Mapping[str, Events], *, title: str = "What is exposed?") -> Picture:
    """Each run's computation and communication on one axis of time, from `traceEvents` of one rank's trace.

    Raises: ValueError for no runs or more than 3, or a trace without communication.
    """
    if not 1 <= len(traces) <= _MOST:
        rule = f"this picture holds 1 to {_MOST} runs"
        raise ValueError(four_parts("plot_trace", f"{len(traces)} traces", rule, "draw two pictures"))
    runs = {name: _run(name, events) for name, events in traces.items()}
    subtitle = "one rank; communication is exposed while nothing is computed beside it"
    last_s = max(run.end_s for run in runs.values())
    factor, unit = time_unit(last_s)
    figure, page = sheet.new_page(_TOP + len(runs) * _PITCH + 0.68, title, subtitle)
    draw_key(page, [Entry(words, [hue]) for words, hue in _KEY.items()], style.MARGIN)
    for number, (name, run) in enumerate(runs.items()):
        top = _TOP + number * _PITCH
        _name_run(page, top + 0.14, name, run.words)
        wide = style.PAGE_WIDTH - _LEFT - style.MARGIN
        axes = sheet.chart_axes(figure, _LEFT, top + _ABOVE, wide, 2 * _LANE)
        label = f"time since the trace began ({unit})" if number == len(runs) - 1 else ""
        look: dict[str, Any] = {"size": style.SMALL_SIZE, "color": style.SOFT}
        prepare_lanes(axes, _LANES, last_s * factor * 1.01, label, gap=10, pad=8, **look)
        axes.grid(False)
        draw_ground(axes, 2, run.end_s * factor, (0.04, 0.96), style.PANEL)
        for words, hue in _KEY.items():
            draw_spans(axes, run.spans[words], factor, (0.04, 0.96), facecolor=hue, linewidth=0)
    said = [f"  {name}: {run.words}" for name, run in runs.items()]
    return Picture(figure, title=title, description="\n".join([subtitle, *said]), kinds=["measured"])


def _run(name: str, events: Events) -> _Profiled:
    communication, computation = (spans_of(some) for some in sorted_out(events))
    if not communication:
        way_out = "profile a step of several ranks, and pass traceEvents of its file"
        raise ValueError(four_parts("plot_trace", f"{name!r}", "a trace needs gloo's or NCCL's calls", way_out))
    alone = without(communication, computation)
    hidden = without(communication, alone)
    origin = min(start for start, _ in [*communication[:1], *computation[:1]])
    end = max(last for _, last in [*communication[-1:], *computation[-1:]])
    parts = zip(_KEY, (0, 1, 1), (computation, hidden, alone), strict=True)
    spans = {words: _placed(lane, words, part, origin) for words, lane, part in parts}
    found = exposed(events)
    total, rest = style.seconds(found.communication_s), style.seconds(found.exposed_s)
    return _Profiled(spans, (end - origin) / 1e6, f"{found.share:.0%} exposed, {rest} of {total}")


def _placed(lane: int, words: str, spans: Spans, origin: float) -> list[Span]:
    return [Span(lane, words, (start - origin) / 1e6, (end - origin) / 1e6) for start, end in spans]


def _name_run(page: Axes, y: float, name: str, words: str) -> None:
    marks.label(page, style.MARGIN, y, name, bold=True, align="left")
    marks.label(page, style.PAGE_WIDTH - style.MARGIN, y, words, align="right")
