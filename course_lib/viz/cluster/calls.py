"""The ranks' last collectives side by side, as their flight recorders hold them: where they part, and who waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.gauges.recorded_calls import FlightCall, calls_by_number, first_difference, unlike_most
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import draw_key
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import check_picture_size

_LEFT, _TOP = 1.36, style.HEADER + 0.76  # inches, right of the ranks' names, below the calls' numbers
_GAP, _PAD, _LINE = 0.08, 0.09, 0.235  # inches between cells, around their words, of a line
_ROOM = style.PAGE_WIDTH - style.MARGIN - _LEFT + _GAP
_MOST, _WIDEST = 8, 2.8  # columns, inches
_KEY = [
    Entry("done", [style.PANEL]),
    Entry("waits", [style.IDLE]),
    Entry("outlined: unlike most ranks", [style.WRONG]),
]

_Columns = Mapping[int, Sequence[FlightCall | None]]  # by the calls' numbers, by rank


@sheet.course_style()
def plot_calls(
    calls_by_rank: Sequence[Sequence[FlightCall]], *, title: str = "Which call does each rank wait in?"
) -> Picture:
    """A row for each rank, a column for each of its last calls, with the operation and the line that called it.

    The first call in which ranks part is a column too, however long ago it was.
    Raises: ValueError for no calls, or more than 8 ranks.
    """
    check_picture_size("plot_calls", len(calls_by_rank))
    columns = calls_by_number(calls_by_rank)
    if not columns:
        way_out = "pass flight_calls(dump) of each rank"
        raise ValueError(four_parts("plot_calls", "no calls", "a table needs a call of some rank", way_out))
    shown = _shown(columns, calls_by_rank)
    cell = min(_ROOM / len(shown), _WIDEST)
    row = _LINE * max(len(_lines(call)) for calls in shown.values() for call in calls) + 2 * _PAD + _GAP
    subtitle = _summary(calls_by_rank)
    figure, page = sheet.new_page(_TOP + len(calls_by_rank) * row + 0.3, title, subtitle)
    draw_key(page, _KEY, _LEFT)
    for rank in range(len(calls_by_rank)):
        marks.rank_badge(page, style.MARGIN + 0.37, _TOP + (rank + 0.5) * row - _GAP / 2, rank)
    for place, (number, calls) in enumerate(shown.items()):
        x, unlike = _LEFT + place * cell, unlike_most(calls)
        marks.label(page, x + (cell - _GAP) / 2, _TOP - 0.2, f"call {number}", colour=style.SOFT)
        for rank, call in enumerate(calls):
            _draw_cell(page, (x, _TOP + rank * row), (cell - _GAP, row - _GAP), call, unlike=rank in unlike)
    for place, (before, after) in enumerate(pairwise(shown), start=1):
        if after > before + 1:
            marks.label(page, _LEFT + place * cell - _GAP / 2, _TOP - 0.2, "…", colour=style.SOFT)
    return Picture(figure, title=title, description=_in_words(shown, subtitle), kinds=["measured"])


def _shown(columns: _Columns, calls_by_rank: Sequence[Sequence[FlightCall]]) -> _Columns:
    """The last calls, as many as have room for their words, and the first in which ranks part."""
    last = [*columns][-_MOST:]
    first = first_difference(calls_by_rank)
    needed = [first.number] if first and first.number not in last else []
    texts = [text for number in needed + last for call in columns[number] for text in _lines(call)]
    widest = max(sheet.text_width(text, style.SMALL_SIZE, 600) for text in texts) + _PAD + _GAP
    room = min(max(int(_ROOM / widest), 1 + len(needed)), _MOST) - len(needed)
    return {number: columns[number] for number in needed + last[-room:]}


def _lines(call: FlightCall | None) -> list[str]:
    return [call.operation, *filter(None, call.place.split(", "))] if call else ["no call"]


def _draw_cell(
    page: Axes, corner: tuple[float, float], size: tuple[float, float], call: FlightCall | None, *, unlike: bool
) -> None:
    """The operation above its place; a rank that has made no such call has an empty cell."""
    fill = "none" if call is None else style.PANEL if call.done else style.IDLE
    edge = style.WRONG if unlike else style.FAINT if call is None else "none"
    marks.box(page, *corner, *size, fill=fill, edge=edge, line=2.6)
    x, lines = corner[0] + size[0] / 2, _lines(call)
    for number, text in enumerate(lines):
        y = corner[1] + size[1] / 2 + (number - (len(lines) - 1) / 2) * _LINE
        look = {"bold": number == 0} if call else {"colour": style.SOFT}
        marks.label(page, x, y, text, size=style.SMALL_SIZE, **look)


def _summary(calls_by_rank: Sequence[Sequence[FlightCall]]) -> str:
    first = first_difference(calls_by_rank)
    waiting = {rank: call.number for rank, calls in enumerate(calls_by_rank) for call in calls[-1:] if not call.done}
    parted = f"ranks part in call {first.number}, on {_names(first.ranks)}" if first else "no two ranks differ"
    if not waiting:
        return f"{parted}; nobody waits"
    if len({*waiting.values()}) == 1:
        who = "all" if len(waiting) == len(calls_by_rank) else _names([*waiting])
        return f"{parted}; {who} wait{'s' * (len(waiting) == 1 and who != 'all')} in call {min(waiting.values())}"
    return f"{parted}; ranks wait in calls {min(waiting.values())} to {max(waiting.values())}"


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _in_words(shown: _Columns, subtitle: str) -> str:
    """Column by column; the same words of several ranks once."""
    lines = [subtitle]
    for number, calls in shown.items():
        ranks_by_words: dict[str, list[int]] = {}
        for rank, call in enumerate(calls):
            ranks_by_words.setdefault(_words(call), []).append(rank)
        said = "; ".join(f"{_names(ranks)} {words}" for words, ranks in ranks_by_words.items())
        lines.append(f"  call {number}: {said}")
    return "\n".join(lines)


def _words(call: FlightCall | None) -> str:
    if call is None:
        return "no call"
    place = f" in {call.place}" if call.place else ""
    return f"{call.operation}{place}, {'done' if call.done else 'waits'}"
