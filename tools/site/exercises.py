"""Exercises as a page: text, stub, and below each stub a solution in a fold; cells that grade are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from tools.paths import ROOT
from tools.site.cells import code, folded, shown, text_cell
from tools.site.lessons import doors, write_page
from tools.site.links import Links, copied, page_of

SOLVED = ROOT / "exercises/solutions"


def write_exercises(release: Path, there: set[str]) -> None:
    """Write the page of a learner's copy."""
    file = release.relative_to(ROOT).as_posix()
    page = str(page_of(file))
    links = Links(release, page, there)
    first, *rest = nbformat.read(release, as_version=4).cells
    title, _, opening = first.source.partition("\n")
    ways = (("Lesson", f"../lessons/{release.stem}.html"), ("This page as a notebook", f"../{copied(file)}"))
    cells = [text_cell(title), text_cell(doors(iter(ways))), text_cell(links.rewritten(opening))]
    write_page(page, [*cells, *_cells(rest, links, solutions(SOLVED / release.name))])


def solutions(notebook: Path) -> dict[str, str]:
    """By grade id, the code that solves it."""
    cells = nbformat.read(notebook, as_version=4).cells
    return {cell.metadata.nbgrader.grade_id: cell.source for cell in cells if _mark(cell).get("solution")}


def _mark(cell: Any) -> dict[str, Any]:
    return dict(cell.metadata.get("nbgrader", {}))


def _cells(found: list[Any], links: Links, solved: dict[str, str]) -> Iterator[Any]:
    for cell in found:
        mark = _mark(cell)
        if cell.cell_type == "markdown":
            yield text_cell(links.rewritten(cell.source))
        elif mark.get("grade_id") == "setup":
            yield text_cell(folded("Setup", code(cell.source)))
        elif not mark.get("grade"):
            yield from shown(cell, "../")
        if mark.get("solution"):
            yield text_cell(folded("A solution", code(solved[mark["grade_id"]])))
