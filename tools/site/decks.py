"""Slides: the decks that `make slides` has built, and a page that lists them, or says how they are made."""

from __future__ import annotations

import shutil

from tools.paths import ROOT
from tools.site.places import SOURCES

BUILT = ROOT / "build/slides"
KINDS = {".html": "as a page", ".pdf": "as PDF"}
INDEX = "slides/index"
_LIST = """# Slides and print

{decks}

A lesson prints as well: by your browser's own command, without the menu. Answers and code that are folded stay out of
it, and what you have opened before is printed open.
"""
_THERE = """Each deck is one file that needs no network. Opened as a page, the key P shows its notes and the next slide.

| the lesson | its slides |
| --- | --- |
{rows}"""
_NONE = """Most lessons have slides, and their figures and numbers are computed when they are built. That takes
minutes, so this site was built without them. In a clone of the course, these two commands build them, as pages and as
PDF, and then the site with them:

```sh
make slides
make site
```"""


def copy_decks() -> dict[str, list[str]]:
    """Copy what there is of each deck; return by its name what there is: a page, PDF, or both."""
    found: dict[str, list[str]] = {}
    for deck in sorted(file for file in BUILT.glob("[0-9][0-9]*") if file.suffix in KINDS):
        target = SOURCES / "_extra/slides" / deck.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(deck, target)
        found.setdefault(deck.stem, []).append(deck.suffix)
    return found


def write_decks(decks: dict[str, list[str]]) -> None:
    """Write the page that lists them."""
    rows = []
    for name, kinds in decks.items():
        ways = ", ".join(f'<a href="{name}{kind}">{KINDS[kind]}</a>' for kind in kinds)
        rows.append(f"| [](/lessons/{name}.ipynb) | {ways} |")
    told = _THERE.format(rows="\n".join(rows)) if rows else _NONE
    target = SOURCES / f"{INDEX}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_LIST.format(decks=told), encoding="utf-8")
