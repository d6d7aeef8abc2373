"""Writes `notebooks/README.md`, the course's table of contents, from the lessons themselves; a test finds drift.

Beside it, the pages of the routes and of the placement test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.exercise_facts import HEAD
from tools.lesson import cells, number, promises, title, told_minutes
from tools.paths import ROOT
from tools.route_pages import PLACEMENT, ROUTES, summary, write

CONTENTS = ROOT / "notebooks/README.md"
LESSONS = sorted((ROOT / "notebooks/src").glob("[0-9][0-9]*.py"))
_OPENING = """# The course, lesson by lesson

Each lesson begins where the one before it still hurts, so read them in order. The minutes are those of its core path:
to read it, to run it, and to think of a number before each result. What lies behind *Going deeper* comes on top, and
you can skip it. `make lab` opens copies of all this without results; here they stand with them. Of the slides you find
the text here, and `make slides` makes HTML and PDF of it in `build/slides`. [What others call it](WORDS.md) has the
words of the course beside those of papers, logs and frameworks."""


def contents() -> str:
    """Return the whole page."""
    return "\n\n".join([_OPENING, summary(), *map(entry, LESSONS)]) + "\n"


def entry(source: Path) -> str:
    """Return what the page says of one lesson."""
    head = f"## [{number(source)} · {title(source)}]({source.stem}.ipynb)"
    time = f"{told_minutes(source)} minutes. Afterwards you will be able to"
    links = list(beside(source))
    return "\n\n".join([head, time, "\n".join(f"- {promise}" for promise in promises(source)), *links])


def beside(source: Path) -> Iterator[str]:
    """A line of links to the lesson's exercises, scripts and slides, as far as they are there."""
    links = []
    exercises = ROOT / f"exercises/src/{source.name}"
    if exercises.exists():
        minutes = exercise_minutes(exercises)
        links.append(f"[{len(minutes)} exercises](../exercises/release/{source.stem}.ipynb), {sum(minutes)} minutes")
    scripts = sorted((ROOT / "notebooks/scripts").glob(f"{number(source)}_*.py"))
    links += [f"[in PyTorch alone](scripts/{script.name})" for script in scripts]
    decks = sorted((ROOT / "slides").glob(f"{number(source)}_*.md"))
    links += [f"[text of the slides](../slides/{deck.name})" for deck in decks]
    if links:
        yield " · ".join(links)


def exercise_minutes(exercises: Path) -> list[int]:
    """The minutes of each exercise, as its head says."""
    heads = [HEAD.match(cell.source) for cell in cells(exercises) if cell.cell_type == "markdown"]
    return [int(head["minutes"]) for head in heads if head]


if __name__ == "__main__":
    CONTENTS.write_text(contents(), encoding="utf-8")
    write()
    print(*(path.relative_to(ROOT) for path in (CONTENTS, ROUTES, PLACEMENT)))
