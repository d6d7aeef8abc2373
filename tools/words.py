"""The course's words and the field's: writes the page `notebooks/WORDS.md` from the table, and finds old words."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from tools.lesson import cells, title
from tools.paths import ROOT

TABLE, PAGE = ROOT / "notebooks/words.yaml", ROOT / "notebooks/WORDS.md"
LESSONS = ROOT / "notebooks/src"
LINK = f"*[What others call it]({PAGE.name}): the words of this course, and those of papers, logs and frameworks.*"
_OPENING = """# What others call it

You can search a paper, a log or a forum only with the words that it uses. Here is each word in the order in which you
meet it, and beside it what else people call the same thing. The last column leads to the section where it stands in
bold for the first time."""
_COLUMNS = ("| word | what it says | what others call it | where |", "| --- | --- | --- | --- |")
_HEADING = re.compile(r"^#+ (?P<section>.+)$")
_BOLD = re.compile(r"(?<!\*)\*\*(?P<term>[^*\n]+)\*\*(?!\*)")
Word = dict[str, Any]


@cache
def table() -> tuple[Word, ...]:
    """Every row of the table."""
    return tuple(yaml.safe_load(TABLE.read_text(encoding="utf-8")))


def page(lessons: Path = LESSONS) -> str:
    """Return the whole page."""
    numbers = sorted({word["lesson"] for word in table()})
    return "\n\n".join([_OPENING, *(part(lesson_of(number, lessons), number) for number in numbers)]) + "\n"


def lesson_of(number: str, lessons: Path = LESSONS) -> Path:
    """The source of a lesson."""
    return next(lessons.glob(f"{number}_*.py"))


def part(source: Path, number: str) -> str:
    """Return the rows of one lesson."""
    rows = [row(word, source) for word in table() if word["lesson"] == number]
    return "\n".join([f"## {number} · {title(source)}", "", *_COLUMNS, *rows])


def row(word: Word, source: Path) -> str:
    """Return one row, with a link to the section in which the word stands in bold."""
    section = next(where_bold(word, source), "")
    anchor = f"#{quote(section.replace(' ', '-'))}" if section else ""
    where = f"[{section.partition(' · ')[2] or section or title(source)}]({source.stem}.ipynb{anchor})"
    ours = " (our own word)" if word.get("ours") else ""
    return f"| **{word['term']}**{ours} | {word['says']} | {word['others']} | {where} |"


def where_bold(word: Word, source: Path) -> Iterator[str]:
    """The section of each place in a lesson in which the word stands in bold."""
    pattern = re.compile(word.get("bold") or rf"(?:the )?{re.escape(word['term'])}s?")
    section = ""
    for line in (line for cell in cells(source) if cell.cell_type == "markdown" for line in cell.source.splitlines()):
        if heading := _HEADING.match(line):
            section = heading["section"].replace("*", "")
        if any(pattern.fullmatch(found["term"]) for found in _BOLD.finditer(line)):
            yield section


def old_words(text: str) -> list[tuple[str, str]]:
    """Each old word that a text has, as it stands there, with the field's word for it."""
    found = []
    for term, pattern, honest in _old():
        found += [(hit[0], term) for hit in pattern.finditer(honest.sub(" ", text))]
    return found


@cache
def _old() -> tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...]:
    rows = [(word["term"], old) for word in table() for old in word.get("old", ())]
    return tuple((term, re.compile("|".join(old["patterns"])), _any(old.get("honest", ()))) for term, old in rows)


def _any(phrases: Iterable[str]) -> re.Pattern[str]:
    """A pattern for any of the phrases; without one it finds nothing."""
    return re.compile("|".join(map(re.escape, phrases)) or r"(?!)")


def with_link(text: str) -> str:
    """The text of a cell, with a link to the page where a lesson names what comes next."""
    return f"{text}\n\n{LINK}" if "**Next:**" in text else text


if __name__ == "__main__":
    PAGE.write_text(page(Path(sys.argv[1]) if len(sys.argv) > 1 else LESSONS), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
