"""Executes a submission so that a cell which kills its kernel, or loops where no interrupt arrives, fails alone.

It runs beside the submission, so it imports nothing of the course: the notebook comes on standard input, and what each
of its cells put out goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.v4 import new_output

NOTEBOOK_S = 900  # cells after that are not run
LOCKED_S = 240  # a cell that students cannot edit (imports, checks) may take long on a busy machine


def main() -> None:
    """Execute the notebook on standard input and write its cells' outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell-timeout", type=int, required=True, help="seconds for a cell that students write")
    arguments = parser.parse_args()
    notebook = nbformat.reads(sys.stdin.read(), as_version=4)
    SurvivingClient(notebook, timeout=arguments.cell_timeout).run()
    json.dump([cell.get("outputs", []) for cell in notebook.cells], sys.stdout)


class SurvivingClient(NotebookClient):
    """Execution that goes on in a fresh kernel, in which the earlier good cells have run again."""

    def __init__(self, notebook: Any, timeout: int) -> None:
        super().__init__(
            notebook,
            timeout=timeout,
            kernel_name="python3",
            allow_errors=True,
            interrupt_on_timeout=True,
            error_on_timeout={"ename": "CellTimeoutError", "evalue": f"no end after {timeout} s", "traceback": []},
            raise_on_iopub_timeout=True,
            shutdown_kernel="immediate",
            on_cell_executed=note_error,
            extra_arguments=["--HistoryManager.enabled=False"],
        )

    def run(self) -> None:
        """Execute all cells."""
        started = time.monotonic()
        self.reset_execution_trackers()
        with self.setup_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            for index, cell in enumerate(self.nb.cells):
                if cell.cell_type != "code":
                    continue
                if time.monotonic() - started > NOTEBOOK_S:
                    fail(cell, "SubmissionTimeout", f"not run: the notebook took more than {NOTEBOOK_S} s")
                else:
                    self.run_cell(cell, index)

    def run_cell(self, cell: Any, index: int) -> None:
        """Execute one cell; what it breaks is mended for the next ones."""
        for last_try in (False, True):
            try:
                self.execute_cell(cell, index)
                return
            except CellTimeoutError:
                fail(cell, "CellTimeoutError", f"no end after {self.timeout} s, and an interrupt did not help")
                self.recover(index)
                return
            except DeadKernelError:  # this cell's doing, or the late effect of the one before, such as exit()
                if last_try:
                    fail(cell, "DeadKernelError", "this cell ended its kernel")
                self.recover(index)

    def _get_timeout(self, cell: Any) -> int | None:
        """What students write ends soon or never."""
        locked = cell is not None and cell.metadata.get("nbgrader", {}).get("locked")
        return LOCKED_S if locked else super()._get_timeout(cell)

    def recover(self, index: int) -> None:
        """Start a fresh kernel and run the earlier cells that had no error; graded cells have their result already."""
        while True:
            self.replace_kernel()
            earlier = [(i, cell) for i, cell in enumerate(self.nb.cells[:index]) if is_replayed(cell)]
            try:
                for number, cell in earlier:
                    self.execute_cell(cell, number)
                return
            except (CellTimeoutError, DeadKernelError) as error:
                fail(cell, type(error).__name__, "this cell ended its kernel when it ran again")

    def replace_kernel(self) -> None:
        """End the kernel at once, whatever it does, and start another."""
        self._cleanup_kernel()
        self.km = self.create_kernel_manager()
        self.start_new_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.start_new_kernel_client()


def is_replayed(cell: Any) -> bool:
    """Whether a cell belongs to what later cells build on."""
    if cell.cell_type != "code" or cell.metadata.get("nbgrader", {}).get("grade"):
        return False
    return not any(output.output_type == "error" for output in cell.get("outputs", []))


def note_error(*, cell: Any, cell_index: int, execute_reply: Any) -> None:
    """A cell whose reply is an error shows one, even if its code has switched tracebacks off."""
    reply = execute_reply["content"]
    shown = {output.ename for output in cell.outputs if output.output_type == "error"}
    if reply["status"] == "error" and reply["ename"] not in shown:
        fail(cell, reply["ename"], reply["evalue"])


def fail(cell: Any, name: str, text: str) -> None:
    """Give a cell the error output that costs its points."""
    outputs = list(cell.get("outputs", []))
    cell.outputs = [*outputs, new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])]


if __name__ == "__main__":
    main()
