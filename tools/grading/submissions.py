"""Whose notebook is it, and of which module: every file of a download is taken, or there is a line that says why not.

Browsers, Moodle and Canvas rename what students hand in, so a notebook counts if a module's name is part of its own.
Hidden files and what macOS puts into archives are nobody's hand-in and are passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.grading.names import readable

MOODLE = re.compile(r"_assignsubmission_(?:file|onlinetext)_?$")
CANVAS = re.compile(r"^(?P<name>.+?)(?:_LATE)?_(?P<user>\d+)_\d+$")  # name_user_submission, in front of the file's name


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One notebook to be graded; `remark` names those of the same student that are not."""

    student: str
    module: str
    path: Path
    remark: str = ""


def find_submissions(folder: Path, modules: Iterable[str]) -> tuple[list[Submission], list[str]]:
    """Return one submission per student and module, and a line for each file or folder that is none."""
    offered: dict[tuple[str, str], list[Path]] = {}
    lines: list[str] = []
    students: dict[str, bool] = {}  # by folder: whether it has a notebook
    for path in files_in(folder):
        inner = path.relative_to(folder)
        if len(inner.parts) > 1:
            students.setdefault(inner.parts[0], False)
        found = whose(inner, modules) if (problem := trouble(path)) is None else problem
        if isinstance(found, str):
            lines.append(f"{readable(str(inner))}: not taken, {found}")
            continue
        students[inner.parts[0]] = True
        offered.setdefault(found, []).append(path)
    empty = (name for name, has in students.items() if not has)
    lines += [f"{readable(name)}: no notebook of the course in this folder" for name in empty]
    return [best(*who, paths, folder) for who, paths in sorted(offered.items())], lines


def files_in(folder: Path) -> Iterator[Path]:
    """Every file, link and empty folder below, in order; links are not followed."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not passed_over(name))
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        yield from (Path(place) / name for name in sorted([*files, *links]) if not passed_over(name))
        if not folders and not files and Path(place) != folder:
            yield Path(place)


def passed_over(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def trouble(path: Path) -> str | None:
    """Why a path cannot be a submission whatever its name; None if it can."""
    if path.is_symlink():
        return "it is a symbolic link: only the file itself counts"
    if path.is_dir():
        return "it is an empty folder"
    if not path.is_file():
        return "it is no plain file"
    if path.suffix.lower() != ".ipynb":
        return "it is no notebook (.ipynb)" + (": unpack it" if path.suffix in (".zip", ".gz", ".7z") else "")
    return None


def whose(inner: Path, modules: Iterable[str]) -> tuple[str, str] | str:
    """(student, module) of a notebook, by its path inside the folder; else a text that says what is missing.

    >>> whose(Path("Ann Lee_77_assignsubmission_file_/02_collectives (1).ipynb"), ["02_collectives"])
    ('Ann Lee_77', '02_collectives')
    >>> whose(Path("leeann_77_901_02_collectives-1.ipynb"), ["02_collectives"])
    ('leeann_77', '02_collectives')
    """
    named = [module for module in modules if module in inner.stem.lower()]
    if len(named) != 1:
        return f"its name should contain that of its module, one of {', '.join(modules)}"
    if len(inner.parts) > 1:
        return readable(MOODLE.sub("", inner.parts[0])) or readable(inner.parts[0]), named[0]
    before = inner.stem[: inner.stem.lower().index(named[0])].strip(" _-")
    if not before:
        return "it does not say whose it is: put it into a folder with its student's name"
    canvas = CANVAS.match(before)
    return readable(f"{canvas['name']}_{canvas['user']}" if canvas else before), named[0]


def best(student: str, module: str, paths: list[Path], folder: Path) -> Submission:
    """Of several notebooks the one with the very name, then the highest, then the newest."""
    ranked = sorted(paths, key=lambda path: (path.stem != module, len(path.parts), -path.stat().st_mtime, str(path)))
    chosen, *others = [readable(str(path.relative_to(folder))) for path in ranked]
    remark = f"{len(ranked)} notebooks: {chosen} was graded, not {', '.join(others)}" if others else ""
    return Submission(student=student, module=module, path=ranked[0], remark=remark)
