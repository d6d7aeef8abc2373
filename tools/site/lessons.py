"""A lesson as a page: its doors below the title, its cells, and what goes deeper as a section among the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from tools.lesson import DEEPER
from tools.paths import ROOT
from tools.site.cells import shown, text_cell
from tools.site.decks import INDEX, KINDS
from tools.site.links import Links, copied, demoted, page_of, source_of
from tools.site.places import SOURCES

LEXER = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}


def write_lesson(notebook: Path, there: set[str], slides: list[str]) -> None:
    """Write a lesson's page; `slides` are the kinds of its deck that have been built."""
    file = notebook.relative_to(ROOT).as_posix()
    page = str(page_of(file))
    links = Links(notebook, page, there)
    first, *rest = nbformat.read(notebook, as_version=4).cells
    title, _, opening = first.source.partition("\n")
    cells = [
        text_cell(title),
        text_cell(doors(beside(notebook, file, there, slides))),
        text_cell(links.rewritten(opening)),
    ]
    write_page(page, [*cells, *_cells(rest, links, "../")])


def _cells(found: list[Any], links: Links, up: str) -> Iterator[Any]:
    """All headings from *Going deeper* on are one level lower: a page has one title."""
    deeper = False
    for cell in found:
        if cell.cell_type == "markdown":
            deeper |= cell.source.startswith(DEEPER)
            text = links.rewritten(cell.source)
            yield text_cell(demoted(text) if deeper else text)
        else:
            yield from shown(cell, up)


def beside(notebook: Path, file: str, there: set[str], slides: list[str]) -> Iterator[tuple[str, str]]:
    """What a lesson's page leads to: a name, and its address from there."""
    name = notebook.stem
    if f"exercises/{name}" in there:
        yield "Exercises", f"../exercises/{name}.html"
    for kind in slides:
        yield f"Slides {KINDS[kind]}", f"../slides/{name}{kind}"
    if not slides and (ROOT / f"slides/{name}.md").exists():
        yield "Slides", f"../{INDEX}.html"
    number = name.partition("_")[0]
    for script in sorted((ROOT / "notebooks/scripts").glob(f"{number}_*.py")):
        yield f"In PyTorch alone: {script.stem}", f"../{page_of(script.relative_to(ROOT).as_posix())}.html"
    yield "This page as a notebook", f"../{copied(file)}"


def doors(links: Iterator[tuple[str, str]]) -> str:
    """A line of links, as HTML that Markdown lets pass."""
    return f'<p class="doors">{" ".join(f"""<a href="{address}">{name}</a>""" for name, address in links)}</p>'


def write_page(page: str, cells: list[Any]) -> None:
    """Write cells as the notebook that Sphinx makes a page of."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [cell for cell in cells if cell.source.strip() or cell.get("outputs")]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    notebook.metadata = nbformat.from_dict(LEXER)
    target = SOURCES / source_of(page)
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
