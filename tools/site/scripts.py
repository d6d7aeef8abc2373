"""The scripts in PyTorch alone as pages: one that grows shows what is new against the stage before it."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from tools.paths import ROOT
from tools.site.cells import code
from tools.site.links import page_of
from tools.site.places import SOURCES

SCRIPTS = ROOT / "notebooks/scripts"
LESSONS = ROOT / "notebooks/src"
_SHOWN = re.compile(r'show_difference\(Path\("scripts/(?P<old>\w+\.py)"\), Path\("scripts/(?P<new>\w+\.py)"\)\)')
_OPENING = """# In PyTorch alone

What a lesson builds from messages, its script writes in plain PyTorch. One of them grows from lesson to lesson, and
each of its stages says what is new in it. All run under `torchrun`, on CPUs and on GPUs."""


def write_scripts() -> None:
    """Write a page for each script, and one that lists them."""
    before = stages()
    pages = [write_script(path, before.get(path.name)) for path in sorted(SCRIPTS.glob("*.py"))]
    rows = [f"- [{path.stem}](/scripts/{path.stem}.md): {_says(path)}" for path in sorted(SCRIPTS.glob("*.py"))]
    toctree = "\n".join(["```{toctree}", ":hidden:", *(page.partition("/")[2] for page in pages), "```"])
    (SOURCES / "scripts/index.md").write_text("\n\n".join([_OPENING, "\n".join(rows), toctree]) + "\n")


def stages() -> dict[str, str]:
    """By a stage's name that of the stage before it, as the lessons compare them."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(LESSONS.glob("*.py"))]
    return {hit["new"]: hit["old"] for text in texts for hit in _SHOWN.finditer(text)}


def write_script(path: Path, before: str | None) -> str:
    """Write the page of one script."""
    page = str(page_of(path.relative_to(ROOT).as_posix()))
    text = path.read_text(encoding="utf-8")
    parts = [f"# {path.stem}", _says(path)]
    if before:
        old = (SCRIPTS / before).read_text(encoding="utf-8")
        stem = before.removesuffix(".py")
        parts += [f"## What is new against [{stem}](/scripts/{stem}.md)", f"````diff\n{_difference(old, text)}\n````"]
        parts += ["## All of it"]
    parts += [code(text.rstrip())]
    target = SOURCES / f"{page}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def _says(path: Path) -> str:
    """The first line of a script, with the command that starts it as code."""
    line = path.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0].splitlines()[0]
    what, _, command = line.partition(": ")
    return f"{what}: `{command}`"


def _difference(old: str, new: str) -> str:
    _, _, *lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=2, lineterm="")
    return "\n".join(lines)
