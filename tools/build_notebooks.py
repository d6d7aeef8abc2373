"""Executes notebooks/src/*.py and writes the notebooks that are read, with their outputs; `--check` finds drift."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from tools.outputs import machine_paths, store, tidy
from tools.paths import ROOT, quiet_kernels, unhurried
from tools.words import with_link

NOTEBOOKS = ROOT / "notebooks"
ASKS = "**Before you "  # run it, or run the next cell: a question without a `predict`
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_SECONDS = 600  # above the ranks' own limits, so that a hang is explained by them


def main() -> int:
    """Build or check every notebook, or those whose name starts with the given text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="start of a name, for instance 02")
    parser.add_argument("--check", action="store_true", help="do not build, report drift")
    parser.add_argument("--texts", action="store_true", help="renew the prose alone, where no code has changed")
    arguments = parser.parse_args()
    if arguments.check:
        lines = all_drift(NOTEBOOKS)
        print("\n".join(lines) or "every notebook follows its source", file=sys.stderr if lines else sys.stdout)
        return bool(lines)
    os.environ.update(quiet_kernels() | unhurried())
    for source in sorted((NOTEBOOKS / "src").glob(f"{arguments.only}*.py")):
        started = time.monotonic()
        try:
            (renew_texts if arguments.texts else build)(source, target_of(source))
        except (CellExecutionError, CellTimeoutError, ValueError) as error:
            print(f"{source.stem}: {error}", file=sys.stderr)
            return 1
        print(f"{source.stem}: {time.monotonic() - started:.1f} s", flush=True)
    return 0


def target_of(source: Path) -> Path:
    """Return the notebook that a source builds: notebooks/src/02_x.py -> notebooks/02_x.ipynb."""
    return source.parent.parent / f"{source.stem}.ipynb"


def build(source: Path, target: Path) -> None:
    """Execute `source` from a fresh kernel in the notebook's folder and write it with its outputs.

    Raises: ValueError if an output tells a path of this machine; nbclient's error if a cell fails.
    """
    notebook = read_source(source)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(target.parent)}},
    )
    client.execute()
    tidy(notebook)
    lines = machine_paths(notebook)
    if lines:
        raise ValueError(f"{target.name}: outputs tell paths of this machine:\n" + "\n".join(lines))
    store(notebook, target)


def renew_texts(source: Path, target: Path) -> None:
    """Write `source` with the outputs that are there, without running anything.

    Raises: ValueError if a code cell has changed.
    """
    notebook, there = read_source(source), nbformat.read(target, as_version=4)
    pairs = [[cell for cell in one.cells if cell.cell_type == "code"] for one in (notebook, there)]
    if [cell.source for cell in pairs[0]] != [cell.source for cell in pairs[1]]:
        raise ValueError(f"{target.name}: its code has changed; run make notebooks ONLY={source.stem[:2]}")
    for cell, executed in zip(*pairs, strict=True):
        cell.outputs, cell.execution_count = executed.outputs, executed.execution_count
    nbformat.write(notebook, target)


def read_source(source: Path) -> Any:
    """Read percent text as a notebook with cell ids that stay while a cell's text stays; it links the words' page."""
    notebook = jupytext.read(source, fmt="py:percent")
    seen: set[str] = set()
    for cell, before in zip(notebook.cells, [None, *notebook.cells], strict=False):
        cell.source = with_link(cell.source)
        cell.id = stable_id(cell.source, seen)
        cell.metadata = metadata_of(cell, answers=before is not None and asks(before))
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def metadata_of(cell: Any, *, answers: bool = False) -> dict[str, Any]:
    """Return what nbval and JupyterLab are told about a cell, from the marks of its source.

    `# %% varies="reason"`: its output differs from run to run, so nbval does not compare it. `# %% folded=true`: its
    code is folded away. What `answers` a question of the text above is folded away too; what answers a `predict` has
    folded itself, since other viewers than JupyterLab read no mark. Other tags are kept.
    """
    tags = [*cell.metadata.get("tags", []), *(["nbval-ignore-output"] if cell.metadata.get("varies") else [])]
    hidden = answers and cell.cell_type == "code" and "predict(" not in cell.source
    folded = {"source_hidden": bool(cell.metadata.get("folded")), "outputs_hidden": hidden}
    found = {"tags": tags, "jupyter": {what: True for what, hides in folded.items() if hides}}
    return {name: value for name, value in found.items() if value}


def asks(cell: Any) -> bool:
    """Whether a text ends with a question to be answered before the cell below it runs."""
    return cell.cell_type == "markdown" and ASKS in cell.source.rpartition("\n## ")[2].rpartition("</details>")[2]


def stable_id(text: str, seen: set[str]) -> str:
    """Return an id made from the cell's text, numbered where the same text stands twice."""
    base = hashlib.sha256(text.encode()).hexdigest()[:8]
    candidates = [base, *(f"{base}-{number}" for number in range(2, 2 + len(seen)))]
    fresh = next(name for name in candidates if name not in seen)
    seen.add(fresh)
    return fresh


def all_drift(folder: Path) -> list[str]:
    """Return a line for each notebook that is missing, left over or differs from its source."""
    sources = {path.stem: path for path in (folder / "src").glob("*.py")}
    built = {path.stem: path for path in folder.glob("*.ipynb")}
    lines = [f"{name}: no notebook; run make notebooks" for name in sorted(sources.keys() - built.keys())]
    lines += [f"{name}: no source in {folder.name}/src" for name in sorted(built.keys() - sources.keys())]
    for name in sorted(sources.keys() & built.keys()):
        lines += drift(sources[name], built[name])
    return lines


def drift(source: Path, target: Path) -> list[str]:
    """Return a line if the cells' texts differ, or a code cell was never executed."""
    wanted, found = read_source(source), nbformat.read(target, as_version=4)
    way_out = f"run make notebooks ONLY={source.stem[:2]}"
    pairs = zip(wanted.cells, found.cells, strict=False)
    for number, (new, old) in enumerate(pairs):
        if (new.cell_type, new.source, new.id) != (old.cell_type, old.source, old.id):
            return [f"{source.stem}: cell {number} differs from its source; {way_out}"]
        if new.metadata != old.metadata:
            return [f"{source.stem}: cell {number} is marked otherwise than in its source; {way_out}"]
        if old.cell_type == "code" and old.source.strip() and old.execution_count is None:
            return [f"{source.stem}: cell {number} was never executed; {way_out}"]
    if len(wanted.cells) != len(found.cells):
        return [f"{source.stem}: {len(found.cells)} cells, its source has {len(wanted.cells)}; {way_out}"]
    return []


if __name__ == "__main__":
    sys.exit(main())
