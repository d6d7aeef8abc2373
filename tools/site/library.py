"""The library behind the doors as pages, one for each file: what it offers, and below that the file itself."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

from tools.paths import ROOT
from tools.site.cells import code
from tools.site.links import page_of
from tools.site.places import SOURCES

LESSONS = ROOT / "notebooks/src"
_BEHIND = re.compile(r"\]\(\.\./(course_lib/[\w/]+\.py)\)")  # a lesson's link to the file behind it
_IN_NO_MENU = "---\norphan: true\n---"  # Sphinx writes the whole menu anew for each page: half of the seconds
DOORS = (
    *("config", "hardware", "costs", "schedules", "sim", "planner", "comm", "ranks", "savers", "less", "parallel"),
    *("training", "verify", "gauges", "checks", "viz"),
)


def library_files() -> dict[str, dict[Path, list[str]]]:
    """By door, its files with the names that lead there; a file that a lesson ends with is found here as well."""
    found = {door: homes(import_module(f"course_lib.{door}")) for door in DOORS}
    for file in sorted({ROOT / hit for path in LESSONS.glob("*.py") for hit in _BEHIND.findall(path.read_text())}):
        found[file.relative_to(ROOT / "course_lib").parts[0]].setdefault(file, [])
    return found


def write_library(files: dict[str, dict[Path, list[str]]]) -> None:
    """Write a page for each file, one for each door, and one for all."""
    for door, found in files.items():
        write_door(door, found)
    _write_index()


def write_door(door: str, files: dict[Path, list[str]]) -> None:
    """Write the pages of one door."""
    module = import_module(f"course_lib.{door}")
    rows = [_row(file, write_file(file, door), names) for file, names in files.items()]
    lines = [f"# course_lib.{door}", "", "[The library](/library/index.md)", "", first_line(module.__doc__), "", *rows]
    _write(f"library/{door}/index", "\n".join([_IN_NO_MENU, *lines]))


def _row(file: Path, page: str, names: list[str]) -> str:
    """A link to a file, and what it offers through the door."""
    offers = f": {', '.join(f'`{name}`' for name in names)}" if names else ""
    return f"- [{file.relative_to(ROOT / 'course_lib')}](/{page}.md){offers}"


def homes(module: Any) -> dict[Path, list[str]]:
    """By file, the names that a door leads to there."""
    found = defaultdict(list)
    for name in dir(module):
        thing = getattr(module, name, None)
        home = str(getattr(thing, "__module__", ""))
        if home.startswith(f"{module.__name__}.") and (inspect.isclass(thing) or callable(thing)):
            found[Path(str(inspect.getsourcefile(import_module(home))))].append(name)
    return dict(sorted(found.items()))


def write_file(file: Path, door: str) -> str:
    """Write the page of one file: its first words, a table of what it offers, its text; return the page's name."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    offered = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    rows = [f"| `{node.name}` | {_cell(first_line(ast.get_docstring(node)))} |" for node in offered]
    head = [f"# {file.relative_to(ROOT / 'course_lib')}", f"[course_lib.{door}](/library/{door}/index.md)"]
    parts = [*head, ast.get_docstring(tree) or ""]
    parts += ["\n".join(["| name | what it does |", "| --- | --- |", *rows])] if rows else []
    page = str(page_of(file.relative_to(ROOT).as_posix()))
    _write(page, "\n\n".join([_IN_NO_MENU, *parts, code(text.rstrip())]))
    return page


def first_line(words: str | None) -> str:
    """What a docstring says first."""
    return (words or "").split("\n\n")[0].replace("\n", " ").strip()


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def _write_index() -> None:
    rows = [f"- [course_lib.{door}](/library/{door}/index.md)" for door in DOORS]
    words = "Each package of `course_lib` has a door. Behind it stand files, each with what it offers and its text."
    _write("library/index", "\n".join(["# The library", "", words, "", *rows]))


def _write(page: str, text: str) -> None:
    target = SOURCES / f"{page}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n", encoding="utf-8")
