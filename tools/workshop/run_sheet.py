"""The run sheet: what is shown, read, guessed and run, when, and for how long, a line for each slide and cell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tools.lesson import FOLD, cell_minutes
from tools.lesson_sections import OPENING
from tools.routes import Part, Route

_ASKS = re.compile(r"^ *predict\(\s*f?\"(?P<asked>[^\"]+)", re.MULTILINE)
_UNSEEN = re.compile(r"<!--.*?-->|</?[a-z][^<>]*>|!\[.*?\]\(.*?\)")
_PASSED_OVER = re.compile(r"^\s*(#|%|import |from |\)|$)")
_LONGEST = 72  # characters of a line that names a cell
_OPENING = """A line for each slide and each cell, with the minute at which it begins. Reading is counted with 150
words a minute, running a cell with one minute, and a guess with two more. **Guess** means that all write their number
down before anybody runs the cell. **Tell** means that the text is an answer: the handout leaves it out, so say it
yourself, from `notebooks/` of the course."""


class Line(NamedTuple):
    """One thing that happens, and its minutes."""

    doing: str  # slide, read, tell, guess, run or rest
    what: str
    minutes: float


def run_sheet(route: Route, titles: Mapping[str, list[str]]) -> str:
    """The whole sheet. `titles` has the slides of each deck as they are shown, in order."""
    parts, begun = [], 0.0
    for part in route.parts:
        lines = [*lines_of(part, titles)]
        parts.append(_table(part, lines, begun))
        begun += sum(line.minutes for line in lines)
    free = 60 * route.hours - begun
    end = f"That is {clock(begun)} of {clock(60 * route.hours)}. The other {free:.0f} minutes are for questions."
    return "\n\n".join([f"# Run sheet: {route.title}", _OPENING, *parts, end]) + "\n"


def lines_of(part: Part, titles: Mapping[str, list[str]]) -> Iterator[Line]:
    """What happens in a part, one after the other: slides first, then the lesson's cells."""
    if part.rest:
        yield Line("rest", part.title, part.rest)
        return
    if part.shown:
        shown = titles[part.deck.stem]
        yield from (Line("slide", title, n) for title, (_, n) in zip(shown, part.shown, strict=True))
    for section in part.chosen:
        for cell in section.cells:
            yield Line(_doing(cell), _named(cell, section.name), float(cell_minutes(cell)))


def clock(minutes: float) -> str:
    """Minutes since the beginning as hours and minutes.

    >>> clock(0), clock(64.6)
    ('0:00', '1:05')
    """
    return f"{round(minutes) // 60}:{round(minutes) % 60:02}"


def _table(part: Part, lines: list[Line], begun: float) -> str:
    title = part.title if part.rest else f"Lesson {part.lesson}: `{part.source.stem}.ipynb`"
    total = sum(line.minutes for line in lines)
    rows = [f"## {clock(begun)} {title}, {total:.0f} minutes", "", "| at | minutes | | |", "| --- | --- | --- | --- |"]
    for line in lines:
        rows.append(f"| {clock(begun)} | {line.minutes:.1f} | {line.doing} | {line.what.replace('|', '&#124;')} |")
        begun += line.minutes
    return "\n".join(rows)


def _doing(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return "**tell**" if cell.source.startswith(FOLD) else "read"
    return "**guess**, run" if _ASKS.search(cell.source) else "run"


def _named(cell: Any, section: str) -> str:
    """A line by which the teacher finds the cell: its heading or first words, its question, or what it does first."""
    lines = [line.strip() for line in cell.source.replace(FOLD, "").splitlines()]
    if cell.cell_type == "markdown":
        lines.sort(key=lambda line: not line.startswith("#"))  # a heading, if there is one
        plain = (_UNSEEN.sub("", line).strip("# ") for line in lines)
        return _cut(next(filter(None, plain), section))
    if asked := _ASKS.search(cell.source):
        return _cut(asked["asked"])
    if section == OPENING and lines[0].startswith("# Setup"):
        return "Setup"
    return f"`{_cut(next((line for line in lines if not _PASSED_OVER.match(line)), lines[0]))}`"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
