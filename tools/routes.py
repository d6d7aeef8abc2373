"""Routes through the course: which sections and slides belong to each, and how long it takes, all of it computed.

The table is `notebooks/routes.yaml`. A workshop is a list of parts and rests. Who learns alone or for a term has
a plan, whose days or weeks name whole lessons (`tools/plans.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from slides.template import MINUTES
from tools.lesson_sections import OPENING, Section, missing_names, most_ranks, sections
from tools.paths import ROOT

TABLE = ROOT / "notebooks/routes.yaml"
SLACK = 0.1  # of a room's time, for questions
_BETWEEN_SLIDES = "\n---\n"
_TITLE = re.compile(r"^#{1,2} (?P<title>.+)$", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)  # notes and marks, which may stand first


@dataclass(frozen=True, kw_only=True)
class Part:
    """Sections of one lesson, shown some slides first; or a rest, which has a title and its minutes."""

    lesson: str = ""
    sections: Sequence[str] = ()  # or the word core
    slides: tuple[str, ...] = ()
    rest: int = 0
    title: str = ""

    @property
    def source(self) -> Path:
        """The lesson's text. Raises: StopIteration if there is none of that number."""
        return next((ROOT / "notebooks/src").glob(f"{self.lesson}_*.py"))

    @property
    def deck(self) -> Path:
        """The slides of the lesson's module."""
        return next((ROOT / "slides").glob(f"{self.lesson[:2]}_*.md"))

    @cached_property
    def chosen(self) -> list[Section]:
        """The opening and the sections that were named, in the lesson's order."""
        if self.rest:
            return []
        names = None if self.sections == "core" else {OPENING, *self.sections}
        return [one for one in sections(self.source) if names is None or one.name in names]

    @cached_property
    def shown(self) -> list[tuple[str, int]]:
        """Title and minutes of each slide, in the deck's order."""
        there = slides_of(self.deck) if self.slides else {}
        return [(title, minutes) for title, minutes in there.items() if title in self.slides]

    @property
    def minutes(self) -> float:
        """Of the slides and the cells, or of the rest."""
        return self.rest + sum(minutes for _, minutes in self.shown) + sum(one.minutes for one in self.chosen)

    def problems(self) -> Iterator[str]:
        """What is named and not there, and what the chosen cells lack."""
        if self.rest:
            return
        lesson = sections(self.source)
        wanted = [] if self.sections == "core" else list(self.sections)
        yield from (f"{self.lesson}: no section {name!r}" for name in wanted if name not in {x.name for x in lesson})
        gone = set(self.slides) - {title for title, _ in self.shown}
        yield from (f"{self.deck.name}: no slide {title!r}" for title in sorted(gone))
        yield from (f"{self.lesson}: {line}" for line in missing_names(self.chosen, lesson))


@dataclass(frozen=True, kw_only=True)
class Route:
    """One workshop."""

    name: str
    title: str
    needs: str
    says: str
    hours: float
    gpus: int
    parts: tuple[Part, ...] = field(default=())

    @property
    def minutes(self) -> float:
        """With its rests, and without what is left for questions."""
        return sum(part.minutes for part in self.parts)

    @property
    def ranks(self) -> int:
        """The largest number of ranks that one of its cells starts: what a seat has to carry."""
        return most_ranks(section for part in self.parts for section in part.chosen)

    def problems(self) -> list[str]:
        """A line for each thing that is gone, and one if the time does not do."""
        lines = [line for part in self.parts for line in part.problems()]
        if self.minutes > (1 - SLACK) * 60 * self.hours:
            lines.append(f"{self.minutes:.0f} minutes leave no tenth of {self.hours:g} hours for questions")
        return lines


@cache
def table() -> dict[str, Any]:
    """The whole table, as it is written."""
    found: dict[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return found


def routes() -> dict[str, Route]:
    """The workshops by name."""
    return {row["name"]: route_of(row) for row in table()["workshops"]}


def route_of(row: dict[str, Any]) -> Route:
    """A route from its row of the table."""
    parts = tuple(Part(**{**part, "slides": tuple(part.get("slides", ()))}) for part in row["parts"])
    return Route(**{**row, "parts": parts})


def slides_of(deck: Path) -> dict[str, int]:
    """The minutes of each slide by its title, as the deck's source writes it."""
    return {title_of(slide): int(found[1]) for slide in split_deck(deck)[1] if (found := MINUTES.search(slide))}


def split_deck(deck: Path) -> tuple[str, list[str]]:
    """The front matter with the setup block, and the slides."""
    front, *slides = deck.read_text(encoding="utf-8").split(_BETWEEN_SLIDES)
    setup, fence, first = slides[0].rpartition("\n```\n")
    return f"{front}{_BETWEEN_SLIDES}{setup}{fence}", [first, *slides[1:]]


def joined(front: str, slides: Iterable[str]) -> str:
    """A deck of these slides."""
    return front + _BETWEEN_SLIDES.join(slides)


def title_of(slide: str) -> str:
    """What stands first and largest on a slide."""
    found = _TITLE.search(_COMMENT.sub("", slide))
    return found["title"] if found else ""
