"""The library's real code in a notebook, coloured as Python and found again under its path."""

from __future__ import annotations

import difflib
import html
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from textwrap import dedent
from typing import Any

_BLOCK = "font-family: monospace; line-height: 1.35; overflow-x: auto; background: none"


class Source:
    """Source text of one function or class, as Markdown where that is shown."""

    def __init__(self, place: str, code: str) -> None:
        self.place = place
        self.code = code

    def __repr__(self) -> str:
        return f"# {self.place}\n{self.code}"

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        return {"text/markdown": f"`{self.place}`\n\n```python\n{self.code}\n```", "text/plain": repr(self)}


class _Difference(Source):
    """What changed from one file to the next: new lines on green, old ones on red, on any page."""

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        lines = "\n".join(map(_on_its_colour, self.code.splitlines()))
        page = f"<div><code>{html.escape(self.place)}</code></div>\n<pre style='{_BLOCK}'>{lines}</pre>"
        return {"text/html": page, "text/plain": repr(self)}


def _on_its_colour(line: str) -> str:
    """A changed line has the page's letters on a tint that lets the page through."""
    tint = {"+": "rgba(0, 158, 115, 0.25)", "-": "rgba(213, 94, 0, 0.25)"}.get(line[:1])
    written = html.escape(line)
    return f"<span style='background: {tint}'>{written}</span>" if tint else written


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
    return _Difference(f"{old.name} -> {new.name}, changed lines: {changed}", "\n".join(lines))


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
