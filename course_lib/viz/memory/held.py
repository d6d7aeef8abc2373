"""What each rank of a pipeline holds at most, under several schedules side by side."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.schedules import Schedule
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import draw_key
from course_lib.viz.ink.picture import Picture
from course_lib.viz.schedules.runs import check_ranks, held_by_rank

_HELD = {"in flight": style.COMPUTE["forward"], "stashed": style.COMPUTE["backward weight"]}
_MEANING = {"in flight": "in flight, until backward", "stashed": "stashed for backward weight"}
_LANE, _GAP, _ROOM = 0.46, 0.3, 0.42  # inches: one rank, between schedules, for the number beside a bar
_LEFT = style.MARGIN + 0.8  # inches: rank names
_MOST = 5
_LINE = 0.26  # inches: of a schedule's name


@sheet.course_style()
def plot_held(
    schedules: Mapping[str, Schedule],
    *,
    title: str = "What each rank holds at most",
    subtitle: str = "in micro-batches",
) -> Picture:
    """Below each schedule's name a bar for each rank: micro-batches in flight, and those stashed if it has any.

    Units: activations of one micro-batch on one rank; one of its v stages counts 1/v.
    Raises: ValueError for no schedules or more than 5, a name too long for its column, or more than 8 ranks.
    """
    names = _names(schedules)
    holds = {name: held_by_rank(schedule) for name, schedule in schedules.items()}
    ranks, lines = max(one.n_ranks for one in schedules.values()), max(map(len, names.values()))
    head = style.HEADER + 0.42
    top = head + 0.1 + lines * _LINE
    figure, page = sheet.new_page(top + ranks * _LANE + 0.4, title, subtitle)
    found = [kind for kind in _HELD if any(any(hold[kind]) for hold in holds.values())]
    draw_key(page, [Entry(_MEANING[kind], [_HELD[kind]]) for kind in found], _LEFT)
    for rank in range(ranks):
        marks.label(page, _LEFT - 0.14, top + (rank + 0.5) * _LANE, f"rank {rank}", align="right")
    most = max(number for hold in holds.values() for row in hold.values() for number in row)
    wide = _column(len(schedules))
    for column, (name, hold) in enumerate(holds.items()):
        left = _LEFT + column * (wide + _GAP)
        for number, line in enumerate(names[name]):
            y = head + 0.13 + (lines - len(names[name]) + number) * _LINE
            marks.label(page, left, y, line, bold=True, align="left")
        _draw_bars(page, left, top, hold, (wide - _ROOM) / most)
    return Picture(figure, title=title, description=_in_words(holds, subtitle), kinds=["formula"])


def _column(n_schedules: int) -> float:
    """Inches across of one schedule's bars and numbers."""
    return (style.PAGE_WIDTH - style.MARGIN - _LEFT - (n_schedules - 1) * _GAP) / n_schedules


def _names(schedules: Mapping[str, Schedule]) -> dict[str, list[str]]:
    """Each name in one or two lines that fit its column."""
    if not 1 <= len(schedules) <= _MOST:
        values, rule = f"{len(schedules)} schedules", f"this picture holds 1 to {_MOST}"
        raise ValueError(four_parts("plot_held", values, rule, "draw two pictures"))
    wide, names = _column(len(schedules)), {}
    for name, schedule in schedules.items():
        check_ranks("plot_held", schedule)
        lines = [""]
        for word in name.split():
            if lines[-1] and sheet.text_width(f"{lines[-1]} {word}", weight=600) > wide:
                lines.append("")
            lines[-1] = f"{lines[-1]} {word}".strip()
        if len(lines) > 2 or any(sheet.text_width(line, weight=600) > wide for line in lines):
            rule = "a name fits above its bars in two lines"
            raise ValueError(four_parts("plot_held", f"schedule {name!r}", rule, "shorten it"))
        names[name] = lines
    return names


def _draw_bars(page: Axes, left: float, top: float, hold: Mapping[str, list[float]], scale: float) -> None:
    """One bar in a rank's lane, or two thin ones if the schedule stashes anything; each with its number."""
    kinds = [kind for kind in _HELD if any(hold[kind])]
    pitch = 0.38 / len(kinds)
    for position, kind in enumerate(kinds):
        for rank, number in enumerate(hold[kind]):
            y = top + rank * _LANE + 0.04 + position * pitch
            marks.box(page, left, y + 0.01, number * scale, pitch - 0.02, fill=_HELD[kind], corner=0.02)
            x = left + number * scale + 0.07
            marks.label(page, x, y + pitch / 2, f"{number:.3g}", size=style.SMALL_SIZE, align="left")


def _in_words(holds: Mapping[str, Mapping[str, list[float]]], subtitle: str) -> str:
    lines = [subtitle]
    for name, hold in holds.items():
        parts = [f"{kind} {', '.join(f'{number:.3g}' for number in row)}" for kind, row in hold.items() if any(row)]
        lines.append(f"  {name}, from rank 0 on: {'; '.join(parts)}")
    return "\n".join(lines)
