"""Climb with the trainers in a folder: `python -m course_lib.checks.project my_project` (or `… my_project/mesh.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

from course_lib.checks.project.ladder import TRAINERS, climb
from course_lib.errors import four_parts


def main(place: str) -> int:
    """Print a line for each rung of each trainer that is there; 0 if all of them hold."""
    path = Path(place)
    files = [path] if path.suffix == ".py" else [path / f"{name}.py" for name in TRAINERS]
    files = [file for file in files if file.is_file() and file.stem in TRAINERS]
    if not files:
        rule = f"a project holds {', '.join(f'{name}.py' for name in TRAINERS)}"
        print(four_parts("project", place, rule, "name the folder that holds them, or one of them"), file=sys.stderr)
        return 2
    failed = 0
    for file in files:
        print(f"{file.name}", flush=True)
        for climbed in climb(file.stem, file.read_text(encoding="utf-8"), seed=0):
            failed += bool(climbed.reason)
            mark, said = ("FAIL", f"  {climbed.reason}") if climbed.reason else ("ok  ", "")
            print(f"  {mark} {climbed.rung:<24}{said}".rstrip(), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m course_lib.checks.project FOLDER")
    sys.exit(main(sys.argv[1]))
