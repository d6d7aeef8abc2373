"""Run a lesson top to bottom, its ranks on the nodes of the job: `python -m tests.slurm.lesson 03 2`."""

from __future__ import annotations

import os
import sys

import jupytext
from IPython.core.interactiveshell import InteractiveShell

from tools.paths import ROOT


def main(number: str, per_node: str) -> int:
    """Take the nodes after the first cell, which loads the extension; return how many cells failed unasked."""
    (path,) = (ROOT / "notebooks" / "src").glob(f"{number}_*.py")
    cells = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    os.chdir(ROOT / "notebooks")  # where a lesson finds its script
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    failed = 0
    for count, cell in enumerate(cells):
        ended = shell.run_cell(cell.source)
        asked = "raises-exception" in cell.metadata.get("tags", ())
        if not ended.success and not asked:
            print(f"cell {count} failed: {cell.source}")
            failed += 1
        if count == 0:
            shell.run_line_magic("attach", f"per_node={per_node}")
    print(f"{len(cells)} cells of {path.stem}, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
