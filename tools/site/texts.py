"""Texts that are pages already: what others call it, results in the wild, commands, and what is for instructors."""

from __future__ import annotations

from tools.paths import ROOT
from tools.site.links import Links, page_of
from tools.site.places import SOURCES

TEXTS = (
    *("notebooks/WORDS.md", "notebooks/ROUTES.md", "notebooks/PLACEMENT.md"),
    *("wild/RESULTS.md", "wild/PEERS.md", "wild/OLMO.md", "COMMANDS.md", "CHECK_YOUR_TRAINER.md"),
    *("exercises/project/ASSIGNMENT.md", "exercises/README.md", "CONTRIBUTING.md", "tests/gpu/README.md"),
    *("CONTRIBUTING-LESSONS.md", "CHANGELOG.md"),
)


def write_texts(there: set[str]) -> None:
    """Write the pages of the repository's own texts."""
    for file in TEXTS:
        page = str(page_of(file))
        target = SOURCES / f"{page}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Links(ROOT / file, page, there).rewritten((ROOT / file).read_text(encoding="utf-8")))
