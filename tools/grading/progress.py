"""What the cells of a submission put out, told cell by cell: what a later one does undoes nothing that had run before.

A submission can kill or stop the program that executes it. Then another one goes on behind the last cell that was told.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from jsonschema import ValidationError
from nbformat.v4 import new_output

from tools.grading.isolation import IsolationError, Runs
from tools.grading.restored import is_graded

EXECUTE = Path(__file__).with_name("execute.py")
NOTEBOOK_S = 900  # cells after that are not run
SUBMISSION_S = 1200  # for the cell that runs then, and for starting again; nothing of it is left after that


@dataclass(kw_only=True)
class Progress:
    """One submission: its cells' outputs by number, and the cell that runs."""

    cells: list[Any]
    done: dict[int, list[Any]] = field(default_factory=dict)
    now: int | None = None

    def note(self, line: str) -> None:
        """Take a line of the executor. What a submission may have written in between is passed over."""
        try:
            told = json.loads(line)
            index, outputs = told["cell"], told["outputs"]
            kept = index in self.done and is_graded(self.cells[index])  # its first result is what it has earned
            if kept or self.cells[index].cell_type != "code" or type(index) is not int or index < 0:
                return
            for output in outputs or ():
                nbformat.validate(output, ref="output", version=4, version_minor=5)
        except (ValueError, TypeError, LookupError, RecursionError, AttributeError, ValidationError):
            return
        self.now = index if outputs is None else None
        if outputs is not None:
            self.done[index] = outputs

    def fail(self, index: int, name: str, text: str) -> None:
        """Give a cell the error output that costs its points."""
        error = new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])
        self.done[index] = [*self.done.get(index, []), error]

    def left(self) -> list[int]:
        """The cells that have not been run."""
        return [
            number for number, cell in enumerate(self.cells) if cell.cell_type == "code" and number not in self.done
        ]


def execute(notebook: Any, runs: Runs, cell_timeout: int) -> None:
    """Fill in the outputs of all cells; what runs the cells sees this notebook alone, and only outputs come back.

    Raises: IsolationError if no cell could be run.
    """
    progress = Progress(cells=notebook.cells)
    started = time.monotonic()
    tried: set[tuple[int | None, int]] = set()
    while progress.left() and (gone := time.monotonic() - started) < SUBMISSION_S:
        given = {"notebook": notebook, "done": progress.done, "cell_timeout": cell_timeout}
        given["seconds"] = max(0.0, NOTEBOOK_S - gone)
        progress.now, trouble = None, "its executor ended early"
        try:
            for line in runs.alone(EXECUTE, given=json.dumps(given), limit_s=SUBMISSION_S - gone):
                progress.note(line)
        except IsolationError as error:
            trouble = str(error)
        if not progress.left():
            break
        guilty = progress.now  # or, the first time, a late effect of the one before it
        again = (guilty, len(progress.done)) in tried
        if runs.stopped or (guilty is None and again):
            if runs.stopped or not progress.done:
                raise IsolationError(trouble)
            break
        if guilty is not None and (again or guilty in progress.done):
            progress.fail(guilty, "ExecutorError", f"this cell ended the program that runs it: {trouble}")
        tried.add((guilty, len(progress.done)))
    for number in progress.left():
        progress.fail(number, "SubmissionTimeout", "not run: the notebook took too long, or its executor did not start")
    for number, outputs in progress.done.items():
        notebook.cells[number].outputs = [nbformat.from_dict(output) for output in outputs]
