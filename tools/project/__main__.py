"""`make project` writes a student's folder, `make grade-project` runs the rubric on what comes back."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from course_lib.checks.project.ladder import TRAINERS
from tools.grading import isolation
from tools.grading.isolation import Runs
from tools.grading.names import readable
from tools.grading.sheet import sheet, write_whole
from tools.paths import ROOT
from tools.project.planted import hand_out
from tools.project.rubric import grade, table

OUT = ROOT / "build/grades/project.csv"


def main(*words: str) -> int:
    """Hand out, or grade."""
    parser = argparse.ArgumentParser(prog="tools.project", description=__doc__)
    parser.add_argument("command", choices=("hand-out", "grade"))
    parser.add_argument("folder", type=Path, help="to write; or to grade: a project, or a folder of students' projects")
    parser.add_argument("--seed", type=int, default=os.environ.get("GRADE_SEED") or "0", help="which bugs")
    arguments = parser.parse_args(words)
    if arguments.command == "hand-out":
        return write(arguments.folder, arguments.seed)
    return mark(arguments.folder, arguments.seed)


def write(folder: Path, seed: int) -> int:
    """A student's folder, where nothing is yet."""
    if folder.exists():
        print(f"make project: {folder} is there already; nothing is overwritten: give another DIR", file=sys.stderr)
        return 1
    hand_out(folder, seed)
    print(f"{folder}: three trainers with bugs of GRADE_SEED {seed}; begin with its README.md")
    return 0


def mark(folder: Path, seed: int) -> int:
    """A table for each project, and a CSV with a line for each, which is written after each of them."""
    found = projects(folder)
    if not found:
        print(f"make grade-project: no trainer in {folder}, nor in a folder of it", file=sys.stderr)
        return 1
    print(isolation.told(), flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    runs, lines = Runs(), []
    with isolation.awake():
        for place in found:
            rows = grade(place, seed, runs)
            print(f"\n{readable(place.name)}\n{table(rows)}", flush=True)
            lines.append({"project": readable(place.name), **{row.name: str(row.points) for row in rows}})
            write_whole(OUT, sheet(list(lines[0]), lines))
    print(f"\n{OUT}")
    return 0


def projects(folder: Path) -> list[Path]:
    """The folder itself, or those in it that hold a trainer; what is left out, such as a link, is named."""
    if is_project(folder):
        return [folder]
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [place for place in inside if is_project(place)]
    for place in inside:
        if place not in found:
            print(f"{readable(place.name)}: left out, for it is no folder with {' or '.join(TRAINERS)}.py")
    return found


def is_project(place: Path) -> bool:
    """Whether at least one trainer lies in it."""
    return not place.is_symlink() and any((place / f"{name}.py").is_file() for name in TRAINERS)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
