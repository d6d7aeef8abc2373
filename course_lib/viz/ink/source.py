"""The library's real code in a notebook, coloured as Python and found again under its path."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from textwrap import dedent
from typing import Any


class Source:
    """Source text of one function or class, or what changed in a file, as Markdown where that is shown."""

    def __init__(self, place: str, code: str, language: str = "python") -> None:
        self.place = place
        self.code = code
        self.language = language

    def __repr__(self) -> str:
        return f"# {self.place}\n{self.code}"

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        return {"text/markdown": f"`{self.place}`\n\n```{self.language}\n{self.code}\n```", "text/plain": repr(self)}


def show_source(thing: Callable[..., Any] | type | Path) -> Source:
    """The code of a function or class exactly as it runs, under the file that it is in; or a whole file.

    Raises: TypeError or OSError, as `inspect.getsource`, for what has no Python source.
    """
    if isinstance(thing, Path):
        return Source(thing.name, thing.read_text(encoding="utf-8").rstrip())
    code = inspect.unwrap(thing)
    file = Path(inspect.getsourcefile(code) or "notebook")
    return Source(_place_of(file), dedent(inspect.getsource(code)).rstrip())


def show_difference(old: Path, new: Path) -> Source:
    """What changed from one file to the next, with two lines around each change, made from the files.

    A line that took the place of another counts as one changed line; an empty one does not count.
    """
    before, after = (path.read_text(encoding="utf-8").splitlines() for path in (old, new))
    changed = _changed_lines(before, after)
    _, _, *lines = list(difflib.unified_diff(before, after, n=2, lineterm="")) or ["", ""]
    return Source(f"{old.name} -> {new.name}, changed lines: {changed}", "\n".join(lines), "diff")


def _changed_lines(before: list[str], after: list[str]) -> int:
    changed = 0
    for tag, i, end_i, j, end_j in difflib.SequenceMatcher(None, before, after).get_opcodes():
        if tag != "equal":
            changed += max(sum(map(bool, before[i:end_i])), sum(map(bool, after[j:end_j])))
    return changed


def _place_of(file: Path) -> str:
    """How a reader finds it again; a kernel keeps each cell in a file of a name that says nothing."""
    if "course_lib" in file.parts:
        return "/".join(file.parts[file.parts.index("course_lib") :])
    return "this notebook" if file.parent.name.startswith("ipykernel") else file.name
