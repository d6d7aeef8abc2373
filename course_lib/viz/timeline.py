"""What every rank did when, drawn from a real ledger: compute, sends, and receives with the wait inside them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from course_lib.comm.ledger import Event, Ledger
from course_lib.comm.traces import matched_sends
from course_lib.errors import four_parts
from course_lib.units import format_bytes
from course_lib.viz import style
from course_lib.viz.badges import Kind
from course_lib.viz.keys import LINE, Entry, draw_key, lines_of
from course_lib.viz.picture import Picture

_LEFT, _TOP, _LANE, _AXIS = 1.3, style.HEADER + 0.62, 0.66, 0.62  # inches: rank names, key, one rank, time axis
_MOST_ARROWS = 16
_SEND, _RECEIVE, _NATIVE = "send", "receive", "native call"
WAITING, COMMUNICATION = "waiting", "communication"
_COLOURS = {
    **style.COMPUTE,
    _SEND: style.COMMUNICATION,
    _RECEIVE: style.tint(style.COMMUNICATION, 0.62),
    COMMUNICATION: style.COMMUNICATION,
    WAITING: style.IDLE,
    _NATIVE: style.COMMUNICATION,
}


class Bar(NamedTuple):
    """A stretch of time on one rank's lane, and where in the lane it lies (0 is its top, 1 its bottom)."""

    rank: int
    what: str
    start_s: float
    end_s: float
    top: float
    bottom: float


@style.course_style()
def plot_timeline(ledger: Ledger, *, title: str = "What every rank did, and when") -> Picture:
    """One lane per rank: compute in full height; sends in the upper, receives in the lower half of the lane.

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
    beside = _at_once(ledger)
    bars = [bar for event in ledger.events for bar in _bars(event, pairs.get(id(event)), beside)]
    origin = ledger.events[0].start_s
    scale, unit = time_unit(ledger.span_s)
    key = key_of(bars)
    top, tall = _TOP + LINE * (len(lines_of(key, _LEFT)) - 1), ledger.world_size * _LANE
    figure, page = style.new_page(
        top + tall + _AXIS + 0.25, title, f"{len(ledger.events)} events in {style.seconds(ledger.span_s)}"
    )
    width = style.PAGE_WIDTH - _LEFT - style.MARGIN
    axes = style.chart_axes(figure, _LEFT, top, width, tall)
    _prepare_lanes(axes, ledger, scale, unit)
    for what in sorted({bar.what for bar in bars}):
        draw_bars(axes, [bar for bar in bars if bar.what == what], origin, scale)
    if len(pairs) <= _MOST_ARROWS:
        _draw_arrows(axes, pairs, {id(event): event for event in ledger.events}, origin, scale, beside)
    _draw_calls(axes, ledger, origin, scale, width)
    draw_key(page, key, _LEFT)
    return Picture(figure, title=title, description=_in_words(ledger, bars), kinds=[kind_of(ledger)])


def kind_of(ledger: Ledger) -> Kind:
    """What a ledger's times are."""
    return "emulated" if ledger.emulated else "measured"


def _at_once(ledger: Ledger) -> bool:
    """Whether some rank computes while it communicates, by more than the rounding of their times."""
    for rank in range(ledger.world_size):
        mine = [event for event in ledger.events if event.rank == rank]
        compute = [event for event in mine if event.kind == "compute"]
        for event in mine:
            if event.kind != "compute" and any(
                min(event.end_s, other.end_s) - max(event.start_s, other.start_s) > 1e-4 * ledger.span_s
                for other in compute
            ):
                return True
    return False


def _lower(place: float, beside: bool) -> float:
    """Where in a lane messages lie: below computing, if they have to share the lane with it."""
    return 0.34 + 0.66 * place if beside else place


def _bars(event: Event, send: Event | None, beside: bool) -> list[Bar]:
    rank, start, end = event.rank, event.start_s, event.end_s
    if event.kind == "compute":
        return [Bar(rank, event.operation or "compute", start, end, 0.08, 0.36 if beside else 0.92)]
    if event.kind == "native":
        return [Bar(rank, _NATIVE, start, end, _lower(0.3, beside), _lower(0.7, beside))]
    if event.kind == "send":
        return [Bar(rank, _SEND, start, end, _lower(0.12, beside), _lower(0.42, beside))]
    sent = min(max(start, send.start_s), end) if send else start
    top, bottom = _lower(0.52, beside), _lower(0.88, beside)
    parts = [Bar(rank, WAITING, start, sent, top, bottom), Bar(rank, _RECEIVE, sent, end, top, bottom)]
    return [bar for bar in parts if bar.end_s > bar.start_s]


def time_unit(span_s: float) -> tuple[float, str]:
    """Factor and name of the unit in which the span is a number between 1 and 1000."""
    return (1.0, "s") if span_s >= 1 else (1e3, "ms") if span_s >= 1e-3 else (1e6, "µs")


def _prepare_lanes(axes: Axes, ledger: Ledger, scale: float, unit: str) -> None:
    ranks = ledger.world_size
    axes.set(xlim=(0, max(ledger.span_s * scale, 1e-9) * 1.01), ylim=(ranks, 0), yticks=[])
    axes.set_xlabel(f"time since the first event ({unit})", labelpad=6)
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0, pad=6)
    for rank in range(ranks):
        axes.axhspan(rank + 0.04, rank + 0.96, color=style.PANEL, linewidth=0, zorder=0)
        axes.annotate(
            f"rank {rank}",
            (0, rank + 0.5),
            xytext=(-12, -72 * style.HALF_CAP * style.BASE_SIZE),
            textcoords="offset points",
            ha="right",
            va="baseline",
            annotation_clip=False,
        )


def draw_bars(axes: Axes, bars: list[Bar], origin: float, scale: float) -> None:
    """All bars of one kind; a bar too short to see still gets a hair's width."""
    what = bars[0].what
    colour = _COLOURS.get(what, style.OTHER_COMPUTE)
    wide = axes.get_xlim()[1] / 150 / scale
    for edge, some in (
        (style.PAPER, [bar for bar in bars if bar.end_s - bar.start_s > wide]),
        (colour, [bar for bar in bars if bar.end_s - bar.start_s <= wide]),
    ):
        corners: list[tuple[float, float]] = []
        for bar in some:
            left, right = ((t - origin) * scale for t in (bar.start_s, bar.end_s))
            top, bottom = bar.rank + bar.top, bar.rank + bar.bottom
            corners += [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(some)
        hatch = "////" if what == _NATIVE else None
        if some:
            axes.add_patch(
                PathPatch(Path(corners, codes), facecolor=colour, edgecolor=edge, linewidth=0.5, hatch=hatch, zorder=2)
            )


def _draw_arrows(
    axes: Axes, pairs: dict[int, Event], events: dict[int, Event], origin: float, scale: float, beside: bool
) -> None:
    """From the start of each send to the end of its receive."""
    for key, send in pairs.items():
        receive = events[key]
        leave, arrive = (0.42, 0.52) if receive.rank > send.rank else (0.12, 0.88)
        axes.annotate(
            "",
            ((receive.end_s - origin) * scale, receive.rank + _lower(arrive, beside)),
            xytext=((send.start_s - origin) * scale, send.rank + _lower(leave, beside)),
            arrowprops={
                "arrowstyle": "-|>,head_length=0.4,head_width=0.16",
                "color": style.INK,
                "linewidth": 0.9,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            zorder=3,
        )


def _draw_calls(axes: Axes, ledger: Ledger, origin: float, scale: float, width: float) -> None:
    """Above the lanes: the span of each call, and as much of the names as fits for all of them; nothing if too many."""
    inches = width / axes.get_xlim()[1]
    spans = []
    for number, operation, algorithm in ledger.calls():
        events = [event for event in ledger.events if (event.call, event.operation) == (number, operation)]
        left = (min(event.start_s for event in events) - origin) * scale
        right = (max(event.end_s for event in events) - origin) * scale
        spans.append((left, right, (f"#{number} {operation}, {algorithm}", f"#{number} {operation}", f"#{number}")))

    def fits(form: int) -> bool:
        return all(
            style.text_width(names[form], style.SMALL_SIZE) + 0.12 < (right - left) * inches
            for left, right, names in spans
        )

    form = next(filter(fits, range(3)), None)
    if form is None:
        return
    look: dict[str, Any] = {"size": style.SMALL_SIZE, "color": style.SOFT, "ha": "center", "va": "bottom"}
    for left, right, names in spans:
        axes.plot([left, right], [-0.1, -0.1], color=style.SOFT, linewidth=1.2, clip_on=False, solid_capstyle="butt")
        axes.text((left + right) / 2, -0.2, names[form], **look)


def key_of(bars: list[Bar]) -> list[Entry]:
    """The kinds that occur."""
    shown = {bar.what for bar in bars}
    known = [what for what in _COLOURS if what in shown]
    return [Entry(what, [_COLOURS.get(what, style.OTHER_COMPUTE)]) for what in known + sorted(shown - set(known))]


def _in_words(ledger: Ledger, bars: list[Bar]) -> str:
    lines = [f"{len(ledger.events)} events of {ledger.world_size} ranks in {style.seconds(ledger.span_s)}"]
    for rank in range(ledger.world_size):
        received = sum(event.kind == "recv" for event in ledger.events if event.rank == rank)
        times: dict[str, float] = defaultdict(float)
        for bar in bars:
            if bar.rank == rank and bar.what not in (_SEND, _RECEIVE):
                times[bar.what] += bar.end_s - bar.start_s
        lines.append(
            f"  rank {rank}: sends {ledger.messages(rank)} ({format_bytes(ledger.bytes_sent(rank))}), "
            f"receives {received} ({format_bytes(ledger.bytes_received(rank))})"
            + "".join(f", {what} {style.seconds(seconds)}" for what, seconds in sorted(times.items()))
        )
    lines += [f"  call #{number}: {operation}, {algorithm}" for number, operation, algorithm in ledger.calls()]
    return "\n".join(lines)
