"""Executes a submission so that a cell which kills its kernel, or loops where no interrupt arrives, fails alone.

It runs beside the submission, so it imports nothing of the course. The notebook comes on standard input. Each cell is
told on standard output when it begins and when it has ended: what a later cell does to this program undoes nothing.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

# A submission's second is spared: else nbformat's import compiles 38 grammars of addresses that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # what is None is not to be found

import nbformat  # noqa: E402
from jupyter_core.utils import ensure_async  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import CellTimeoutError, DeadKernelError  # noqa: E402
from nbformat.v4 import new_output  # noqa: E402

LOCKED_S = 240  # a cell that students cannot edit (imports, checks) may take long on a busy machine
COPY_OF = "copy_of"  # in the metadata of a graded cell that is there once more: its grade id
PRINTED = 2_000_000  # characters that a cell may put out; a loop that prints would fill the memory
FLOOD = 10 * PRINTED  # after so many it is interrupted: what lies ready would take far longer to be read
FLOODED = "TooMuchOutput", f"interrupted after {FLOOD:,} characters"
Tell = Callable[[int, list[Any] | None], None]


def main() -> None:
    """Execute the cells of the notebook on standard input that are not done, and tell what they put out."""
    given = json.load(sys.stdin)
    notebook = nbformat.from_dict(given["notebook"])
    done = {int(index): outputs for index, outputs in given["done"].items()}
    SurvivingClient(notebook, given["cell_timeout"], tell).run(given["seconds"], done)


def tell(index: int, outputs: list[Any] | None) -> None:
    """Say that a cell begins, or what it has put out."""
    print(json.dumps({"cell": index, "outputs": outputs}), flush=True)


class SurvivingClient(NotebookClient):
    """Execution that goes on in a fresh kernel, in which the earlier good cells have run again."""

    def __init__(self, notebook: Any, timeout: int, tell: Tell) -> None:
        super().__init__(
            notebook,
            timeout=timeout,
            kernel_name="python3",
            allow_errors=True,
            interrupt_on_timeout=True,
            error_on_timeout={"ename": "CellTimeoutError", "evalue": f"no end after {timeout} s", "traceback": []},
            raise_on_iopub_timeout=True,
            shutdown_kernel="immediate",
            on_cell_execute=lambda cell, cell_index: tell(cell_index, None),
            on_cell_executed=note_error,
            extra_arguments=["--HistoryManager.enabled=False"],
        )
        self.tell = tell
        self.printed = 0
        self.interrupt: asyncio.Future[Any] | None = None  # of a cell that floods

    def run(self, seconds: float, done: dict[int, list[Any]]) -> None:
        """Execute all cells that are not done, as long as there is time."""
        end = time.monotonic() + seconds
        for index, outputs in done.items():
            self.nb.cells[index].outputs = [nbformat.from_dict(output) for output in outputs]
        self.reset_execution_trackers()
        with self.setup_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            if done:
                self.replay(max(done) + 1)
            for index, cell in enumerate(self.nb.cells):
                if cell.cell_type != "code" or index in done:
                    continue
                if time.monotonic() > end:
                    fail(cell, "SubmissionTimeout", "not run: the notebook took too long")
                else:
                    self.run_cell(cell, index)
                self.tell(index, cell.outputs)

    def run_cell(self, cell: Any, index: int) -> None:
        """Execute one cell; what it breaks is mended for the next ones."""
        for last_try in (False, True):
            self.interrupt = None
            try:
                self.execute_cell(cell, index)
                if self.interrupt is None:
                    return
                fail(cell, *FLOODED)
            except CellTimeoutError:  # after an interrupt too: what has been printed may take too long to be read
                late = "CellTimeoutError", f"no end after {self.timeout} s, and an interrupt did not help"
                fail(cell, *(late if self.interrupt is None else FLOODED))
            except DeadKernelError:  # this cell's doing, or the late effect of the one before, such as exit()
                if not last_try:
                    self.recover(index)
                    continue
                fail(cell, "DeadKernelError", "this cell ended its kernel")
            self.recover(index)
            return

    def _get_timeout(self, cell: Any) -> int | None:
        """What students write ends soon or never."""
        locked = cell is not None and (COPY_OF in cell.metadata or cell.metadata.get("nbgrader", {}).get("locked"))
        return LOCKED_S if locked else super()._get_timeout(cell)

    def recover(self, index: int) -> None:
        """Start a fresh kernel and run the earlier cells that had no error; graded cells have their result already."""
        self.replace_kernel()
        self.replay(index)

    def replay(self, index: int) -> None:
        """Run again what later cells build on; begin anew without a cell that ends the kernel this time."""
        while True:
            earlier = [(i, cell) for i, cell in enumerate(self.nb.cells[:index]) if is_replayed(cell)]
            try:
                for number, cell in earlier:
                    self.execute_cell(cell, number)
                return
            except (CellTimeoutError, DeadKernelError) as error:
                fail(cell, type(error).__name__, "this cell ended its kernel when it ran again")
                self.tell(number, cell.outputs)
                self.replace_kernel()

    def output(self, outs: list[Any], msg: dict[str, Any], display_id: str | None, cell_index: int) -> Any:
        """Keep what a cell puts out, up to a limit; an error is always kept. A flood is interrupted, once."""
        before = self.printed if outs else 0
        self.printed = before + len(str(msg["content"]))
        if before <= FLOOD < self.printed:
            self.interrupt = asyncio.ensure_future(ensure_async(self.km.interrupt_kernel()))
        if msg["msg_type"] != "error" and self.printed > PRINTED:
            return None
        return super().output(outs, msg, display_id, cell_index)

    def replace_kernel(self) -> None:
        """End the kernel at once, whatever it does, and start another."""
        self._cleanup_kernel()
        self.km = self.create_kernel_manager()
        self.start_new_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.start_new_kernel_client()


def is_replayed(cell: Any) -> bool:
    """Whether a cell belongs to what later cells build on."""
    if cell.cell_type != "code" or COPY_OF in cell.metadata or cell.metadata.get("nbgrader", {}).get("grade"):
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
