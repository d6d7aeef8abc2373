"""When each unit of sharded data parallelism is gathered, computed with, and its gradients reduced: one rank's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.comm.ledger import Event, Ledger
from course_lib.comm.traces import call_times
from course_lib.errors import four_parts
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.clock import DIGITS, time_unit
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import draw_key
from course_lib.viz.ink.lanes import Span, draw_ground, draw_spans, prepare_lanes, write_texts
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.timeline import kind_of

_LEFT, _RIGHT, _LANE, _PITCH = 1.4, 0.5, 0.4, 1.36  # inches: lane names, what is right of the lanes, a lane, a run
_MOST = 3
_COMPUTE, _NETWORK = 0, 1
_PLACE = (0.06, 0.94)
_GAP = 3.6  # points between two calls, or 5 and 4 would read as 54
_BESIDE = 0.03  # inches: from the last bar to the line that ends the step, which would hide its number
_KINDS = {  # what an event is called in a ledger -> words, colour, lane
    "forward": ("forward", style.COMPUTE["forward"], _COMPUTE),
    "backward": ("backward", style.COMPUTE["backward"], _COMPUTE),
    "all_gather": ("gather weights", style.COMMUNICATION, _NETWORK),
    "reduce_scatter": ("reduce gradients", style.tint(style.COMMUNICATION, 0.5), _NETWORK),
}


@sheet.course_style()
def plot_units(
    runs: Mapping[str, Ledger],
    n_units: int,
    *,
    rank: int = 0,
    title: str = "Units are gathered, used and freed",
    subtitle: str = "",
) -> Picture:
    """A rank's forward, backward, all-gathers and reduce-scatters, each with its unit's number; a line ends the step.

    Units are computed in their order in forward and in the opposite order in backward, and none is in the root.
    Raises: ValueError for no runs or more than 3, or calls that are no such step's.
    """
    if not 1 <= len(runs) <= _MOST:
        rule = f"this picture holds 1 to {_MOST} runs"
        raise ValueError(four_parts("plot_units", f"{len(runs)} runs", rule, "draw two pictures"))
    subtitle = subtitle or f"rank {rank}; the number names the unit; pale is idle; the line is the end of the step"
    spans = {name: _spans(name, ledger, n_units, rank) for name, ledger in runs.items()}
    ends = {name: round(ledger.span_s, DIGITS) for name, ledger in runs.items()}
    factor, unit = time_unit(max(ends.values()))
    top = style.HEADER + 0.42
    figure, page = sheet.new_page(top + len(runs) * _PITCH + 0.64, title, subtitle)
    draw_key(page, [Entry(words, [hue]) for words, hue, _ in _KINDS.values()], _LEFT)
    width, reach = style.PAGE_WIDTH - _LEFT - _RIGHT, max(ends.values()) * factor
    for number, name in enumerate(runs):
        above = top + number * _PITCH
        marks.label(page, _LEFT, above + 0.12, name, bold=True, align="left")
        axes = sheet.chart_axes(figure, _LEFT, above + 0.32, width, 2 * _LANE)
        label = f"time since the step began ({unit})" if number == len(runs) - 1 else ""
        look = {"size": style.SMALL_SIZE, "color": style.SOFT}
        prepare_lanes(axes, ("compute", "network"), reach, label, gap=10, pad=8, **look)
        axes.grid(False)
        end = ends[name] * factor
        draw_ground(axes, 2, end, (0.03, 0.97), style.PANEL)
        for kind, (_, hue, _) in _KINDS.items():
            these = [span for span in spans[name] if span.what == kind]
            draw_spans(axes, these, factor, _PLACE, facecolor=hue, edgecolor=style.PAPER, linewidth=_GAP)
            write_texts(axes, these, factor, _PLACE, width / reach, room=0.02, colour=style.text_on(hue))
        foot = end + _BESIDE * reach / width
        axes.axvline(foot, -0.08, 1.08, color=style.INK, linewidth=2.2, clip_on=False, zorder=4)
        right = _LEFT + foot * width / reach
        marks.label(page, right, above + 0.12, f"{_three_digits(end)} {unit}", bold=True, align="right")
    kinds = dict.fromkeys(map(kind_of, runs.values()))
    return Picture(figure, title=title, description=_in_words(spans, ends, subtitle), kinds=[*kinds])


def _spans(name: str, ledger: Ledger, n_units: int, rank: int) -> list[Span]:
    """What the rank did, in its order, with the numbers of units."""
    origin = ledger.events[0].start_s if ledger.events else 0.0
    mine = [event for event in ledger.events if event.rank == rank]
    found = []
    for kind, (_, _, lane) in _KINDS.items():
        times = _times([event for event in mine if event.operation == kind])
        units = _order(kind, n_units, len(times))
        if units is None:
            values, rule = f"run {name!r} has {len(times)} of {kind}", f"this is no step of {n_units} units"
            raise ValueError(four_parts("plot_units", values, rule, "give the ledger of one step, without a root unit"))
        for number, (start, end) in zip(units, times, strict=True):
            found.append(Span(lane, kind, round(start - origin, DIGITS), round(end - origin, DIGITS), str(number)))
    return found


def _times(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Start and end of each computation, or of each call."""
    if events and events[0].kind == "compute":
        return sorted((event.start_s, event.end_s) for event in events)
    return sorted(call_times(events).values())


def _order(kind: str, n_units: int, count: int) -> list[int] | None:
    """The unit of each event of a kind; None if there are too many or too few."""
    ahead = list(range(n_units))
    orders = {"forward": [ahead], "all_gather": [ahead + ahead[::-1], ahead]}
    return next((order for order in orders.get(kind, [ahead[::-1]]) if len(order) == count), None)


def _three_digits(number: float) -> str:
    """10.0 and not 10, so that it reads as the same number as 10.03."""
    return f"{number:#.3g}".rstrip(".")


def _in_words(runs: Mapping[str, Sequence[Span]], ends: Mapping[str, float], subtitle: str) -> str:
    lines = [subtitle]
    for name, spans in runs.items():
        lines.append(f"  {name}: {style.seconds(ends[name])}")
        for kind, (words, _, _) in _KINDS.items():
            these = [span for span in spans if span.what == kind]
            at = ", ".join(f"{span.text} until {style.seconds(span.end_s)}" for span in these)
            lines.append(f"    {words}: {at}")
    return "\n".join(lines)
