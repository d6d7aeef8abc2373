"""The parts of nbgrader that the course replaces: stubs that name their exercise, and execution that survives.

With nbgrader's own execution a submission that kills its kernel, or loops where no interrupt arrives, loses
everything. Here only the cell that did it fails.
"""

from __future__ import annotations

import time
from typing import Any

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.v4 import new_output
from nbgrader.preprocessors import ClearSolutions, Execute
from traitlets import Integer

from tools.exercise_text import without_solution


class ExerciseStubs(ClearSolutions):
    """nbgrader's ClearSolutions with the course's stubs."""

    def _replace_solution_region(self, cell: Any, language: str) -> bool:
        before = cell.source
        cell.source = without_solution(before, cell.metadata.get("nbgrader", {}).get("grade_id", ""))
        return bool(cell.source != before)


class SurvivingExecute(Execute):
    """Execution that goes on in a fresh kernel, in which the earlier good cells have run again."""

    total_timeout = Integer(900, help="seconds for one notebook; cells after that are not run").tag(config=True)
    locked_timeout = Integer(240, help="seconds for a cell that students cannot edit: imports, checks").tag(config=True)

    def preprocess(self, nb: Any, resources: Any = None, km: Any = None) -> Any:
        self.started = time.monotonic()
        return super().preprocess(nb, resources, km)

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> Any:
        if cell.cell_type != "code":
            return cell, resources
        if time.monotonic() - self.started > self.total_timeout:
            fail(cell, "SubmissionTimeout", f"not run: the notebook took more than {self.total_timeout} s")
            return cell, resources
        for last_try in (False, True):
            try:
                super().preprocess_cell(cell, resources, index)
                break
            except CellTimeoutError:
                fail(cell, "CellTimeoutError", f"no end after {self.timeout} s, and an interrupt did not help")
                self.recover(resources, index)
                break
            except DeadKernelError:  # this cell's doing, or the late effect of the one before, such as exit()
                if last_try:
                    fail(cell, "DeadKernelError", "this cell ended its kernel")
                self.recover(resources, index)
        return cell, resources

    def _get_timeout(self, cell: Any) -> int | None:
        """What students write ends soon or never; our own cells may take long on a busy machine."""
        locked = cell is not None and cell.metadata.get("nbgrader", {}).get("locked")
        return self.locked_timeout if locked else super()._get_timeout(cell)

    def recover(self, resources: Any, index: int) -> None:
        """Start a fresh kernel and run the earlier cells that had no error; graded cells have their result already."""
        while True:
            self.replace_kernel()
            earlier = [(i, cell) for i, cell in enumerate(self.nb.cells[:index]) if is_replayed(cell)]
            try:
                for number, cell in earlier:
                    super().preprocess_cell(cell, resources, number)
                return
            except (CellTimeoutError, DeadKernelError) as error:
                fail(cell, type(error).__name__, "this cell ended its kernel when it ran again")

    def replace_kernel(self) -> None:
        """End the kernel at once, whatever it does, and start another."""
        self._cleanup_kernel()
        self.km = self.create_kernel_manager()
        self.start_new_kernel()
        self.start_new_kernel_client()


def is_replayed(cell: Any) -> bool:
    """Whether a cell belongs to what later cells build on."""
    if cell.cell_type != "code" or cell.metadata.get("nbgrader", {}).get("grade"):
        return False
    return not any(output.output_type == "error" for output in cell.get("outputs", []))


def fail(cell: Any, name: str, text: str) -> None:
    """Give a cell the error output that costs its points."""
    outputs = list(cell.get("outputs", []))
    cell.outputs = [*outputs, new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])]
