"""What a change in the working tree touches: the names whose code has changed, and the tests that can reach them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from tools.code import ALL, START, changed_pieces
from tools.paths import ROOT
from tools.uses import FOLDERS, Place, Uses


def changed_files(root: Path = ROOT) -> list[str]:
    """Return what differs from the branch point with `main`, and what git does not know yet; relative to `root`."""
    known = _git(root, "diff", "--name-only", "--relative", _base(root)).splitlines()
    return sorted({*known, *_git(root, "ls-files", "--others", "--exclude-standard").splitlines()})


def changed_names(file: str, root: Path = ROOT) -> set[str]:
    """Return the names at a file's top whose code differs from the branch point; none if comments alone do."""
    path = root / file
    return changed_pieces(_git(root, "show", f"{_base(root)}:./{file}"), path.read_text() if path.exists() else "")


def runs_the_same(file: str, root: Path = ROOT) -> bool:
    """Whether only comments, docstrings and white space have changed in a file of code."""
    return _is_code(file) and (root / file).exists() and not changed_names(file, root)


def affected_tests(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the tests that reach a changed name, or name a changed file that is no Python."""
    changed, uses = list(changed), Uses(root)
    chosen = set(uses.tests_of({place for file in changed for place in _places(uses, root, file)}))
    others = [Path(file).name for file in changed if not file.endswith(".py")]
    tests = [str(path.relative_to(root)) for path in sorted((root / "tests").rglob("test_*.py"))]
    whole = {test for test in tests if any(name in (root / test).read_text() for name in others)}
    return sorted(whole | {test for test in chosen if test.partition("::")[0] not in whole})


def _places(uses: Uses, root: Path, file: str) -> list[Place]:
    """A file stands for its changed names; a preset or the like for all of the code in the folder above it."""
    if _is_code(file):
        return [(file, name) for name in changed_names(file, root)]
    if file.endswith(".py") or not file.startswith("course_lib/"):
        return []
    folders = [folder for folder in (root / file).parents if any(folder.glob("*.py"))]
    files = [str(path.relative_to(root)) for path in folders[0].glob("*.py")]
    return [(path, name) for path in files for name in (ALL, START, *uses.code(path).pieces)]


def _is_code(file: str) -> bool:
    return file.endswith(".py") and file.partition("/")[0] in FOLDERS


def _base(root: Path) -> str:
    return _git(root, "merge-base", "HEAD", "main").strip() or "HEAD"


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False).stdout
