"""What every rank did when, drawn from a real ledger: compute, sends, and receives with the wait inside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from course_lib.comm.ledger import Event, Ledger
from course_lib.comm.traces import call_times, does_both_at_once, matched_sends
from course_lib.errors import four_parts
from course_lib.units import format_bytes
from course_lib.viz.ink import sheet, style
from course_lib.viz.ink.clock import time_unit
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import LINE, draw_key, lines_of
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.lanes import Place, Span, draw_spans, prepare_lanes
from course_lib.viz.ink.picture import Picture

_LEFT, _TOP, _LANE, _AXIS = 1.3, style.HEADER + 0.62, 0.66, 0.62  # inches: rank names, key, one rank, time axis
_MOST_ARROWS = 16
_COMPUTE, _SEND, _RECEIVE, _NATIVE = "compute", "send", "receive", "native call"
WAITING, COMMUNICATION = "waiting", "communication"
_INSIDE, _BETWEEN = " inside the node", " between nodes"
_FAST = "#2A9DB0"  # where slate is the slow way out of a node
_COLOURS = {
    **style.COMPUTE,
    _SEND: style.COMMUNICATION,
    _RECEIVE: style.tint(style.COMMUNICATION, 0.62),
    _SEND + _INSIDE: _FAST,
    _RECEIVE + _INSIDE: style.tint(_FAST, 0.5),
    _SEND + _BETWEEN: style.COMMUNICATION,
    _RECEIVE + _BETWEEN: style.tint(style.COMMUNICATION, 0.62),
    COMMUNICATION: style.COMMUNICATION,
    WAITING: style.IDLE,
    _NATIVE: style.COMMUNICATION,
}


@sheet.course_style()
def plot_timeline(
    ledger: Ledger, *, title: str = "What every rank did, and when", node_size: int | None = None
) -> Picture:
    """One lane per rank: compute in full height; sends in the upper, receives in the lower half of the lane.

    With `node_size`, ranks fill nodes in order, and messages inside a node have a colour of their own.

    Where a rank computes and communicates at once, computing has the top third of all lanes.
    The part of a receive before its message was sent is waiting. Time starts at the first event.
    Raises: ValueError for a ledger without events.
    """
    if not ledger.events:
        raise ValueError(
            four_parts(
                "plot_timeline",
                "the ledger has 0 events",
                "a timeline needs at least one",
                "communicate through course_lib.comm, then plot ledger()",
            )
        )
    pairs = matched_sends(ledger.events)
    places, origin = _places(does_both_at_once(ledger)), ledger.events[0].start_s
    spans = [span for event in ledger.events for span in _spans(event, pairs.get(id(event)), origin, node_size)]
    factor, unit = time_unit(ledger.span_s)
    key = key_of(spans)
    top, tall = _TOP + LINE * (len(lines_of(key, _LEFT)) - 1), ledger.world_size * _LANE
    figure, page = sheet.new_page(
        top + tall + _AXIS + 0.25, title, f"{len(ledger.events)} events in {style.seconds(ledger.span_s)}"
    )
    width = style.PAGE_WIDTH - _LEFT - style.MARGIN
    axes = sheet.chart_axes(figure, _LEFT, top, width, tall)
    names, reach = [f"rank {rank}" for rank in range(ledger.world_size)], max(ledger.span_s * factor, 1e-9) * 1.01
    prepare_lanes(axes, names, reach, f"time since the first event ({unit})", gap=12, size=style.BASE_SIZE)
    axes.spines["bottom"].set_visible(True)
    for rank in range(ledger.world_size):
        axes.axhspan(rank + 0.04, rank + 0.96, color=style.PANEL, linewidth=0, zorder=0)
    for what in sorted({span.what for span in spans}):
        draw_kind(axes, [span for span in spans if span.what == what], factor, places.get(what, places[_COMPUTE]))
    if len(pairs) <= _MOST_ARROWS:
        _draw_arrows(axes, pairs, {id(event): event for event in ledger.events}, origin, factor, places)
    _draw_calls(axes, ledger, origin, factor, width)
    draw_key(page, key, _LEFT)
    return Picture(figure, title=title, description=_in_words(ledger, spans), kinds=[kind_of(ledger)])


def kind_of(ledger: Ledger) -> Kind:
    """What a ledger's times are."""
    return "emulated" if ledger.emulated else "measured"


def _places(beside: bool) -> dict[str, Place]:
    """Where in a lane everything lies: messages below computing, if some rank does both at once."""

    def lower(top: float, bottom: float) -> Place:
        return (0.34 + 0.66 * top, 0.34 + 0.66 * bottom) if beside else (top, bottom)

    receive = lower(0.52, 0.88)
    messages = {_SEND: lower(0.12, 0.42), _RECEIVE: receive}
    return {
        _COMPUTE: (0.08, 0.36 if beside else 0.92),
        _NATIVE: lower(0.3, 0.7),
        WAITING: receive,
        **{what + way: place for what, place in messages.items() for way in ("", _INSIDE, _BETWEEN)},
    }


def _spans(event: Event, send: Event | None, origin: float, node_size: int | None) -> list[Span]:
    """One, or of a receive two: until its message was sent it waits."""
    rank, start, end = event.rank, event.start_s - origin, event.end_s - origin
    way = ""
    if node_size is not None and event.peer is not None:
        way = _INSIDE if rank // node_size == event.peer // node_size else _BETWEEN
    if event.kind != "recv":
        what = {"compute": event.operation or _COMPUTE, "native": _NATIVE, "send": _SEND + way}[event.kind]
        return [Span(rank, what, start, end)]
    sent = min(max(event.start_s, send.start_s), event.end_s) - origin if send else start
    parts = [Span(rank, WAITING, start, sent), Span(rank, _RECEIVE + way, sent, end)]
    return [span for span in parts if span.end_s > span.start_s]


def draw_kind(axes: Axes, spans: Sequence[Span], factor: float, place: Place) -> None:
    """All spans of one kind; one too short to see still gets a hair's width."""
    what = spans[0].what
    colour = _COLOURS.get(what, style.OTHER_COMPUTE)
    wide = axes.get_xlim()[1] / 150 / factor
    look: dict[str, Any] = {"facecolor": colour, "linewidth": 0.5, "hatch": "////" if what == _NATIVE else None}
    draw_spans(axes, [s for s in spans if s.end_s - s.start_s > wide], factor, place, edgecolor=style.PAPER, **look)
    draw_spans(axes, [s for s in spans if s.end_s - s.start_s <= wide], factor, place, edgecolor=colour, **look)


def _draw_arrows(
    axes: Axes,
    pairs: dict[int, Event],
    events: dict[int, Event],
    origin: float,
    factor: float,
    places: dict[str, Place],
) -> None:
    """From the start of each send to the end of its receive."""
    for key, send in pairs.items():
        receive = events[key]
        down = receive.rank > send.rank
        axes.annotate(
            "",
            ((receive.end_s - origin) * factor, receive.rank + places[_RECEIVE][not down]),
            xytext=((send.start_s - origin) * factor, send.rank + places[_SEND][down]),
            arrowprops={
                "arrowstyle": "-|>,head_length=0.4,head_width=0.16",
                "color": style.INK,
                "linewidth": 0.9,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            zorder=3,
        )


def _draw_calls(axes: Axes, ledger: Ledger, origin: float, factor: float, width: float) -> None:
    """Above the lanes: the span of each call, and as much of the names as fits for all of them; nothing if too many."""
    inches = width / axes.get_xlim()[1]
    spans = []
    for number, operation, algorithm in ledger.calls():
        left, right = ((time - origin) * factor for time in call_times(ledger.of(operation).events)[number])
        spans.append((left, right, (f"#{number} {operation}, {algorithm}", f"#{number} {operation}", f"#{number}")))

    def fits(form: int) -> bool:
        return all(
            sheet.text_width(names[form], style.SMALL_SIZE) + 0.12 < (right - left) * inches
            for left, right, names in spans
        )

    form = next(filter(fits, range(3)), None)
    if form is None:
        return
    look: dict[str, Any] = {"size": style.SMALL_SIZE, "color": style.SOFT, "ha": "center", "va": "bottom"}
    for left, right, names in spans:
        axes.plot([left, right], [-0.1, -0.1], color=style.SOFT, linewidth=1.2, clip_on=False, solid_capstyle="butt")
        axes.text((left + right) / 2, -0.2, names[form], **look)


def key_of(spans: Sequence[Span]) -> list[Entry]:
    """The kinds that occur."""
    shown = {span.what for span in spans}
    known = [what for what in _COLOURS if what in shown]
    return [Entry(what, [_COLOURS.get(what, style.OTHER_COMPUTE)]) for what in known + sorted(shown - set(known))]


def _in_words(ledger: Ledger, spans: Sequence[Span]) -> str:
    lines = [f"{len(ledger.events)} events of {ledger.world_size} ranks in {style.seconds(ledger.span_s)}"]
    for rank in range(ledger.world_size):
        received = sum(event.kind == "recv" for event in ledger.events if event.rank == rank)
        times: dict[str, float] = defaultdict(float)
        for span in spans:
            if span.lane == rank and not span.what.startswith((_SEND, _RECEIVE)):
                times[span.what] += span.end_s - span.start_s
        lines.append(
            f"  rank {rank}: sends {ledger.messages(rank)} ({format_bytes(ledger.bytes_sent(rank))}), "
            f"receives {received} ({format_bytes(ledger.bytes_received(rank))})"
            + "".join(f", {what} {style.seconds(seconds)}" for what, seconds in sorted(times.items()))
        )
    lines += [f"  call #{number}: {operation}, {algorithm}" for number, operation, algorithm in ledger.calls()]
    return "\n".join(lines)
