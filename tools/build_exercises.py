"""Builds from exercises/src the learners' copies and the executed solutions; `--check` finds drift."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from tools.build_notebooks import CELL_SECONDS
from tools.exercise_text import learner_copy, read_master, solution_copy
from tools.outputs import machine_paths, store, tidy
from tools.paths import ROOT, quiet_kernels, unhurried

EXERCISES = ROOT / "exercises"
WAY_OUT = "run make exercises"


def main() -> int:
    """Build or check every module, or those whose name starts with the given text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="start of a name, for instance 02")
    parser.add_argument("--check", action="store_true", help="do not build, report drift")
    arguments = parser.parse_args()
    if arguments.check:
        lines = all_drift(EXERCISES)
        print("\n".join(lines) or "every exercise follows its master", file=sys.stderr if lines else sys.stdout)
        return bool(lines)
    os.environ.update(quiet_kernels() | unhurried())
    sources = sorted((EXERCISES / "src").glob(f"{arguments.only}*.py"))
    if not sources:
        names = ", ".join(sorted(path.stem for path in (EXERCISES / "src").glob("[0-9]*.py")))
        print(
            f"make exercises: ONLY={arguments.only} is no master in exercises/src; choose one of {names}",
            file=sys.stderr,
        )
        return 1
    for source in sources:
        try:
            build(source, EXERCISES)
        except (CellExecutionError, CellTimeoutError, ValueError) as error:
            print(f"{source.stem}: {error}", file=sys.stderr)
            return 1
    return 0


def build(source: Path, folder: Path) -> None:
    """Write release/NAME.ipynb, and solutions/NAME.ipynb with its outputs.

    Raises: ValueError if a solution does not get all its points; nbclient's error if a cell fails.
    """
    store(learner_copy(source), folder / "release" / f"{source.stem}.ipynb")
    solved = solution_copy(source)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(solved, timeout=CELL_SECONDS, kernel_name="python3", record_timing=False, resources=place).execute()
    tidy(solved)
    told = machine_paths(solved)
    if told:
        raise ValueError("the solutions' outputs tell paths of this machine:\n" + "\n".join(told))
    store(solved, folder / "solutions" / f"{source.stem}.ipynb")


def write_source(source: Path, target: Path, seed: int) -> None:
    """Write the notebook from which nbgrader makes its release: the master itself, with the given seed."""
    store(read_master(source, seed), target)


def all_drift(folder: Path) -> list[str]:
    """Return a line for each copy that is missing, left over or differs from its master."""
    masters = {path.stem: path for path in (folder / "src").glob("*.py")}
    lines = []
    for kind, copy_of in (("release", learner_copy), ("solutions", solution_copy)):
        built = {path.stem: path for path in (folder / kind).glob("*.ipynb")}
        lines += [f"{kind}/{name}: missing; {WAY_OUT}" for name in sorted(masters.keys() - built.keys())]
        lines += [f"{kind}/{name}: no master in src" for name in sorted(built.keys() - masters.keys())]
        for name in sorted(masters.keys() & built.keys()):
            lines += drift(f"{kind}/{name}", copy_of(masters[name]), nbformat.read(built[name], as_version=4))
    return lines


def drift(name: str, wanted: Any, found: Any) -> list[str]:
    """Return a line for the first cell that is not what the master makes of it."""
    if len(wanted.cells) != len(found.cells):
        return [f"{name}: {len(found.cells)} cells, its master makes {len(wanted.cells)}; {WAY_OUT}"]
    for number, (new, old) in enumerate(zip(wanted.cells, found.cells, strict=True)):
        if (new.cell_type, new.source, new.id, new.metadata) != (old.cell_type, old.source, old.id, old.metadata):
            return [f"{name}: cell {number} differs from its master; {WAY_OUT}"]
    return []


if __name__ == "__main__":
    sys.exit(main())
