"""A lesson's sections: which cells stand under which heading, and what they need of each other."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.lesson import DEEPER, cell_minutes, cells

OPENING = ""  # the name of what stands before the first section: the question, and the folded setup
_HEADING = re.compile(r"^#{2,} (?P<name>.+)$", re.MULTILINE)
_MAGIC = re.compile(r"^\s*[%!].*$", re.MULTILINE)
_PUSHED = re.compile(r"^%%ranks .*--push ([\w,]+)", re.MULTILINE)
_PULLED = re.compile(r"^%%ranks .*--pull ([\w,]+)", re.MULTILINE)
_GIVEN = {"rank", "world_size", "device", "torch", "dist"}  # what every rank's namespace starts with
_RANKS = re.compile(r"^%%ranks (\d+)|\brun_ranks\([^()]*?(?:\([^()]*\)[^()]*?)*, (\d+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Some cells of a lesson, and the heading above them."""

    name: str
    cells: tuple[Any, ...]

    @property
    def minutes(self) -> float:
        """To read it, to run each of its code cells, and to think of its numbers."""
        return float(sum(map(cell_minutes, self.cells)))


def sections(source: Path) -> list[Section]:
    """The core path of a lesson in sections, the opening first; emphasis in a heading is left out of its name."""
    name, found = OPENING, [(OPENING, list[Any]())]
    for cell in cells(source):
        if cell.source.startswith(DEEPER):
            break
        heading = _HEADING.search(cell.source) if cell.cell_type == "markdown" else None
        if heading and found[0][1]:
            name = heading["name"].replace("*", "").replace("`", "")
            found.append((name, []))
        found[-1][1].append(cell)
    return [Section(name=name, cells=tuple(some)) for name, some in found]


def missing_names(chosen: Iterable[Section], lesson: Iterable[Section]) -> list[str]:
    """A line for each name that a chosen cell uses and only an earlier, skipped cell defines."""
    kept, bound, skipped = {one.name for one in chosen}, set[str](), dict[str, str]()
    lines = []
    for section in lesson:
        for text in (cell.source for cell in section.cells if cell.cell_type == "code"):
            used, made = _used(text), set(_bound(text))
            if section.name not in kept:
                skipped |= dict.fromkeys(made - bound, section.name)
                continue
            lacking = sorted((used - bound - made - _GIVEN - set(dir(builtins))) & skipped.keys())
            lines += [f"{section.name!r} uses {name} of the skipped {skipped[name]!r}" for name in lacking]
            bound |= made
    return lines


def most_ranks(some: Iterable[Section]) -> int:
    """The largest number of ranks that a cell starts."""
    texts = (cell.source for section in some for cell in section.cells if cell.cell_type == "code")
    return max((int(one or other) for text in texts for one, other in _RANKS.findall(text)), default=1)


def _parsed(text: str) -> ast.AST:
    """A cell's Python, without the lines that IPython alone understands."""
    return ast.parse(_MAGIC.sub("", text))


def _used(text: str) -> set[str]:
    """Names that a cell reads, or hands on to its ranks."""
    read = {
        node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return read | _listed(_PUSHED, text)


def _bound(text: str) -> Iterator[str]:
    """Names that a cell gives: assigned, defined, imported, taken as an argument, or brought back from its ranks."""
    yield from _listed(_PULLED, text)
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)


def _listed(option: re.Pattern[str], text: str) -> set[str]:
    return {name for found in option.findall(text) for name in found.split(",") if name}
