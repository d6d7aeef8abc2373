"""The handout: the course as learners get it, without answers, and without a history that still holds them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from course_lib.training.text import ARCHIVE
from tools.copies import files_for_learners
from tools.lesson import FOLD
from tools.paths import ROOT

TOLD = "*The answer is told in the room.*"
# What pip installs from, beside course_lib and a README of the handout's own: the course's links to what is not here.
_WHOLE = ("pyproject.toml", "constraints.txt", "LICENSE", "LICENSE-TEXTS.md")
_KEPT = "Before you start"  # a fold that holds no answer
FOLDS = re.compile(r"<details><summary>(?P<asked>.*?)</summary>(?P<answer>.*?)</details>", re.DOTALL)
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


def write_handout(folder: Path, pages: Mapping[str, str]) -> Path:
    """Write the folder anew with these pages of the route, and a zip of it beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in files_for_learners(ROOT):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(without_folded_answers(name, text), encoding="utf-8")
    shutil.copytree(ROOT / "course_lib", folder / "course_lib", ignore=_LEFT_OUT)
    for name in _WHOLE:
        shutil.copy(ROOT / name, folder / name)
    (folder / "wild").mkdir()
    for page in (ROOT / "wild").glob("*.md"):  # lessons link to them
        shutil.copy(page, folder / "wild" / page.name)
    if ARCHIVE.exists():
        archive = folder / ARCHIVE.relative_to(ROOT)
        archive.parent.mkdir(parents=True)
        shutil.copy(ARCHIVE, archive)
    for name, page in pages.items():
        (folder / name).write_text(page, encoding="utf-8")
    return Path(shutil.make_archive(str(folder), "zip", folder.parent, folder.name))


def without_folded_answers(name: str, text: str) -> str:
    """A page or a notebook in which no fold holds an answer; a question that was the fold's label stays."""
    if name.endswith(".md"):
        return unfolded(text)
    if not name.endswith(".ipynb"):
        return text
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = unfolded("".join(cell["source"])).splitlines(keepends=True)
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def unfolded(text: str) -> str:
    """A text with the sentence of the room in place of each folded answer.

    >>> unfolded("<details><summary>Why?</summary>Because.</details>")
    'Why? *The answer is told in the room.*'
    """

    def told(fold: re.Match[str]) -> str:
        if fold["asked"] == _KEPT:
            return fold[0]
        return TOLD if fold[0].startswith(FOLD) else f"{fold['asked']} {TOLD}"

    return FOLDS.sub(told, text)
