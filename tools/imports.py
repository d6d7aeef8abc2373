"""Which files are loaded when one runs, read from import statements and from strings that name a module.

The graph is coarser than `tools.uses`, which follows names: here a file that is imported counts whole.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FOLDERS = ("course_lib", "slides", "tests", "tools")
COMMAND = re.compile(r'"-m", "course_lib"')
DISCOVERY = re.compile(r"\biter_modules\(|^__getattr__, __dir__ = ", re.MULTILINE)  # a search, or a package's door
EARLY = "course_lib/ranks/server.py"  # names what is imported early, and goes on without it; as a conftest does
NAMED = re.compile(r"(?:course_lib|slides|tests|tools)(?:\.\w+)+\.?")


def reached(root: Path, file: str) -> set[str]:
    """Every file that is loaded when `file` runs, itself and pytest's conftest files included."""
    seen: set[str] = set()
    waiting = [file, *(str(path.relative_to(root)) for path in (root / "tests").rglob("conftest.py"))]
    waiting = [name for name in waiting if name == file or Path(file).is_relative_to(Path(name).parent)]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports_of(root, name)
    return seen


@cache
def imports_of(root: Path, file: str) -> tuple[str, ...]:
    """Return the files of the repository that `file` names as modules."""
    path = root / file
    text = path.read_text()
    tree = ast.parse(text)
    named = [] if path.name == "conftest.py" or file == EARLY else [*_named(tree)]
    names = [*_imported(tree), *named]
    found = {hit for name in names for hit in _files_of(root, path.parent, name.rstrip("."))}
    whole = {hit for name in named if name.endswith(".") for hit in _files_of(root, path.parent, name.rstrip("."))}
    found |= {str(part.relative_to(root)) for hit in whole for part in (root / hit).parent.rglob("*.py")}
    if COMMAND.search(text):
        found.add("course_lib/__main__.py")
    if DISCOVERY.search(text):
        found |= {str(part.relative_to(root)) for part in path.parent.rglob("*.py")}
    return tuple(sorted(found))


def _imported(tree: ast.AST) -> Iterator[str]:
    """The dotted names of all import statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _named(tree: ast.AST) -> Iterator[str]:
    """The dotted names in strings; texts that are only read by people (docstrings) are left out."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            for hit in NAMED.finditer(node.value):
                yield from (hit[0], f"{hit[0].rstrip('.')}.__main__")


def _files_of(root: Path, folder: Path, module: str) -> list[str]:
    """The file of the longest part of a dotted name that is a module; a package's name stands for its `__init__`."""
    parts = module.split(".")
    # Tests import helpers from their own folder, or from one above it, as pytest lets them where a conftest lies.
    above = [place for place in (folder, *folder.parents) if place.is_relative_to(root) and place != root]
    for start in [root] if parts[0] in FOLDERS else above:
        for end in range(len(parts), 0, -1):
            place = start.joinpath(*parts[:end])
            names = (place.with_suffix(".py"), place / "__init__.py")
            found = [str(name.relative_to(root)) for name in names if name.exists()]
            if found:
                return found
    return []
