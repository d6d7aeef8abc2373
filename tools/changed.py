"""What a change in the working tree touches: the tests that import it, directly or not, found without running anything.

The graph is read from the import statements (those in functions too) and from strings that name a module, such as
`python -m course_lib.cli`. A package that finds its parts by itself (`iter_modules`, a door) counts as importing
all of them, and so does whoever makes up names of modules, as in `f"course_lib.checks.{name}"`. A package's `__init__`
counts only where something is taken from the package itself: it mostly passes names on.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tools.paths import ROOT

FOLDERS = ("course_lib", "slides", "tests", "tools")
COMMAND = re.compile(r'"-m", "course_lib"')
DISCOVERY = re.compile(r"\biter_modules\(|^__getattr__, __dir__ = ", re.MULTILINE)  # a search, or a package's door
EARLY = "course_lib/ranks/server.py"  # names what is imported early, and goes on without it; as a conftest does
NAMED = re.compile(r"(?:course_lib|slides|tests|tools)(?:\.\w+)+\.?")


def changed_files(root: Path = ROOT) -> list[str]:
    """Return what differs from the branch point with `main`, and what git does not know yet; relative to `root`."""
    base = _git(root, "merge-base", "HEAD", "main") or ["HEAD"]
    known = _git(root, "diff", "--name-only", "--relative", base[0])
    return sorted({*known, *_git(root, "ls-files", "--others", "--exclude-standard")})


def affected_tests(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files that are changed, import a changed file, or name one that is no Python."""
    seeds = {name for file in changed for name in _stand_ins(root, file)}
    others = {Path(file).name for file in changed if not file.endswith(".py")}
    tests = sorted(path for path in (root / "tests").rglob("test_*.py"))
    return [
        str(path.relative_to(root))
        for path in tests
        if reached(root, str(path.relative_to(root))) & seeds or any(name in path.read_text() for name in others)
    ]


def _stand_ins(root: Path, file: str) -> list[str]:
    """A Python file stands for itself; a preset or another file of the package for the code in the folder above it."""
    if file.endswith(".py") or not file.startswith("course_lib/"):
        return [file]
    folders = [folder for folder in (root / file).parents if any(folder.glob("*.py"))]
    return [str(path.relative_to(root)) for path in folders[0].glob("*.py")]


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
    start = root if parts[0] in FOLDERS else folder  # tests import helpers from their own folder
    for end in range(len(parts), 0, -1):
        place = start.joinpath(*parts[:end])
        names = (place.with_suffix(".py"), place / "__init__.py")
        found = [str(name.relative_to(root)) for name in names if name.exists()]
        if found:
            return found
    return []


def _git(root: Path, *arguments: str) -> list[str]:
    answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return answer.stdout.splitlines()
