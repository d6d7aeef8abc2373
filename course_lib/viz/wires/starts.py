"""Messages of several sizes on one axis of time: the latency that each of them pays, and what its bytes pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.comm.ledger import Event, Ledger
from course_lib.comm.traces import first_start_s
from course_lib.errors import four_parts
from course_lib.hardware import Link
from course_lib.viz.ink import sheet, style
from course_lib.viz.ink.clock import time_unit
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import draw_key
from course_lib.viz.ink.lanes import Span, draw_spans, prepare_lanes
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.timeline import kind_of

_LEFT, _TOP, _LANE, _AXIS = 1.3, style.HEADER + 0.42, 0.62, 0.62  # inches: names, key, one run, time axis
_START, _BYTES = style.INK, style.tint(style.COMMUNICATION, 0.45)


@sheet.course_style()
def plot_starts(runs: Mapping[str, Ledger], link: Link, *, title: str = "What a message pays for") -> Picture:
    """Rank 0's sends of each run, one run below the other; the first α of each message is dark.

    Raises: ValueError if rank 0 sent nothing in a run.
    """
    sends = {name: [e for e in run.events if e.rank == 0 and e.kind == "send"] for name, run in runs.items()}
    if not sends or not all(sends.values()):
        silent = ", ".join(name for name, found in sends.items() if not found) or "no run at all"
        way_out = "communicate in each run, and keep its ledger()"
        raise ValueError(four_parts("plot_starts", silent, "rank 0 sends in each run", way_out))
    starts, rests = [], []
    for lane, (name, found) in enumerate(sends.items()):
        origin = first_start_s(runs[name].events, "send")
        for event in found:
            begins, ends = event.start_s - origin, event.end_s - origin
            starts.append(Span(lane, "start", begins, min(begins + link.alpha_s, ends)))
            rests.append(Span(lane, "bytes", min(begins + link.alpha_s, ends), ends))
    last_s = max(span.end_s for span in rests)
    factor, unit = time_unit(last_s)
    subtitle = f"rank 0's messages over {link.name}, on one axis of time"
    figure, page = sheet.new_page(_TOP + len(runs) * _LANE + _AXIS + 0.25, title, subtitle)
    width = style.PAGE_WIDTH - _LEFT - style.MARGIN
    axes = sheet.chart_axes(figure, _LEFT, _TOP, width, len(runs) * _LANE)
    prepare_lanes(axes, list(runs), last_s * factor * 1.01, f"time ({unit})", gap=12, size=style.BASE_SIZE)
    draw_spans(axes, rests, factor, (0.2, 0.8), facecolor=_BYTES, edgecolor=style.PAPER, linewidth=0.6)
    draw_spans(axes, starts, factor, (0.2, 0.8), facecolor=_START, edgecolor=style.PAPER, linewidth=0.6)
    draw_key(page, [Entry("latency of a message, α", [_START]), Entry("its bytes", [_BYTES])], _LEFT)
    words = [f"  {name}: {len(found)} messages of {style.seconds(_each(found))}" for name, found in sends.items()]
    description = "\n".join([f"{style.seconds(link.alpha_s)} of each message are its latency", *words])
    return Picture(figure, title=title, description=description, kinds=sorted({kind_of(run) for run in runs.values()}))


def _each(sends: Sequence[Event]) -> float:
    """Seconds of one message, on average."""
    return sum(event.end_s - event.start_s for event in sends) / len(sends)
