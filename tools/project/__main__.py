"""`make project` writes a student's folder, `make grade-project` runs the rubric on what comes back."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path

from tools.grading import isolation
from tools.grading.isolation import Runs
from tools.grading.names import readable
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
    """A table for each project, and a CSV with a line for each."""
    found = projects(folder)
    if not found:
        print(f"make grade-project: no mesh.py in {folder}, nor in a folder of it", file=sys.stderr)
        return 1
    print(isolation.told(), flush=True)
    runs, lines = Runs(), []
    with isolation.awake():
        for place in found:
            rows = grade(place, seed, runs)
            print(f"\n{readable(place.name)}\n{table(rows)}", flush=True)
            lines.append({"project": readable(place.name), **{row.name: row.points for row in rows}})
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with OUT.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    print(f"\n{OUT}")
    return 0


def projects(folder: Path) -> list[Path]:
    """The folder itself, or those in it; a link leads nowhere."""
    if (folder / "mesh.py").is_file():
        return [folder]
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    return [place for place in inside if not place.is_symlink() and (place / "mesh.py").is_file()]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
