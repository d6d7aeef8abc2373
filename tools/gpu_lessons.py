"""`make gpu`, its second half: every lesson and three sets of exercises, with the switch at `cpu` and at `cuda`.

What a GPU changes shows in cells: a tensor that lies elsewhere, a message that takes another way. So all lessons
run, and the solutions of the exercises on collectives, data parallelism and sharding, as a learner would run them.
The outcome is a dated file beside `tests/gpu/README.md`. Without a GPU nothing runs, and one line says so, with exit
status 1: a check that was left out must not look like one that passed. `--pretend 4` runs the same with GPUs that are
not there (`tools.pretended`), on any machine.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.v4 import new_code_cell

from course_lib.ranks import switch
from course_lib.ranks.devices import gpus_here
from tools.build_notebooks import CELL_SECONDS, read_source
from tools.exercise_text import solution_copy
from tools.gpu_files import asks_for_a_gpu, device_s_name, today
from tools.paths import ROOT, quiet_kernels

RESULTS = ROOT / "tests/gpu/results"
EXERCISES = ("02", "03", "06")
GPUS = "COURSE_PRETENDED_GPUS"  # as `tools.pretended` reads it on the ranks
LIMIT_S = 300
CORES = 2  # for each notebook that runs beside others: its four ranks wait for each other half of the time
PRELOAD = f"""
from course_lib.ranks import run_ranks, server

server.preload("tools.pretended.ranks")
run_ranks.__kwdefaults__["timeout"] = {LIMIT_S}.0  # a pretended GPU takes many times as long
"""
RAISES = "raises-exception"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one notebook did under one switch."""

    name: str
    switch: str
    failures: tuple[str, ...]  # a line for each cell that failed
    raised: tuple[str, ...]  # the first lines of the errors that were meant to come
    seconds: float

    @property
    def row(self) -> str:
        """Its line of the table."""
        said = "passed" if not self.failures else self.failures[0].replace("|", "/")
        more = f" (and {len(self.failures) - 1} more)" if len(self.failures) > 1 else ""
        return f"| {self.name} | {self.switch} | {said}{more} | {self.seconds:.0f} |"


def sources(only: str) -> Iterator[tuple[str, Path, Any]]:
    """Each notebook with its name and the folder that it runs in."""
    for path in sorted((ROOT / "notebooks/src").glob(f"{only}*.py")):
        yield path.stem, ROOT / "notebooks", read_source(path)
    for path in sorted((ROOT / "exercises/src").glob(f"{only}*.py")):
        if path.stem.startswith(EXERCISES):
            yield f"{path.stem}, solutions", ROOT / "exercises", solution_copy(path)


def execute(name: str, folder: Path, notebook: Any, kind: str, pretended: int | None) -> Outcome:
    """Run all cells in a fresh kernel; one that fails does not keep the next ones from running."""
    started = time.monotonic()
    cells = list(notebook.cells)
    if pretended is not None:
        notebook.cells.insert(0, new_code_cell(PRELOAD))
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS if pretended is None else LIMIT_S,
        kernel_name="python3",
        allow_errors=True,
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    stopped: tuple[str, ...] = ()
    try:
        client.execute(env=environment(kind, pretended))
    except (CellTimeoutError, DeadKernelError) as error:
        stopped = (f"stopped: {_first_line(str(error))}",)
    failures, raised = _errors(cells)
    seconds = time.monotonic() - started
    return Outcome(name=name, switch=kind, failures=failures + stopped, raised=raised, seconds=seconds)


def environment(kind: str, pretended: int | None) -> dict[str, str]:
    """What the kernel finds: the switch, and how many GPUs are to be believed in."""
    found = {**os.environ, **quiet_kernels(), switch.VARIABLE: kind}
    if pretended is not None:
        found[GPUS] = str(pretended)
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return found


def _errors(cells: list[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The errors of cells that should have none, and of those that should; a cell that should and has none fails."""
    failures, raised = [], []
    for number, cell in enumerate(cells):
        errors = [output for output in cell.get("outputs", []) if output.output_type == "error"]
        line = next((f"cell {number}: {one.ename}: {_first_line(one.evalue)}" for one in errors), "")
        if RAISES in cell.metadata.get("tags", []):
            raised.append(line)
            line = "" if line else f"cell {number}: raised nothing"
        if line:
            failures.append(line)
    return tuple(failures), tuple(raised)


def _first_line(text: str) -> str:
    return _COLOURS.sub("", text).strip().partition("\n")[0]


def compared(cpu: Outcome, cuda: Outcome) -> Outcome:
    """On a GPU an error that was meant to come is the one that comes on the CPU."""
    others = [
        f"{there}, on the CPU {here}" for here, there in zip(cpu.raised, cuda.raised, strict=True) if here != there
    ]
    return Outcome(**{**vars(cuda), "failures": (*cuda.failures, *others)})


def text(outcomes: list[Outcome], gpus: str) -> str:
    """The file, or what stands of it so far."""
    failed = sum(bool(one.failures) for one in outcomes)
    head = [
        f"# Lessons with both switches, {today()}: {gpus}",
        "",
        f"Written by `python -m tools.gpu_lessons`. {len(outcomes)} runs, {failed} with a failure.",
        "",
        "| Notebook | Switch | Outcome | Seconds |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *(one.row for one in outcomes)]) + "\n"


def main() -> int:
    """Run the notebooks, write the file after each one; 0 if every cell did what it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="?", default="", help="start of a name, for instance 02; then no file is written")
    parser.add_argument("--pretend", type=int, metavar="GPUS", help="let ranks believe in so many GPUs")
    parser.add_argument("--switch", choices=switch.KINDS, action="append", help="run this one alone")
    asked = parser.parse_args()
    gpus, name = _gpus(asked.pretend)
    under = partial(under_each_switch, kinds=asked.switch or switch.KINDS, pretended=asked.pretend)
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // CORES)) as side_by_side:
        for runs in side_by_side.map(under, sources(asked.only)):
            outcomes += runs
            if not asked.only:
                RESULTS.mkdir(parents=True, exist_ok=True)
                (RESULTS / f"{today()}-{name}.md").write_text(text(outcomes, gpus))
    return int(any(one.failures for one in outcomes))


def under_each_switch(one: tuple[str, Path, Any], kinds: Sequence[str], pretended: int | None) -> list[Outcome]:
    """A notebook's runs, one after the other; each is told as soon as it has ended."""
    name, folder, notebook = one
    runs: list[Outcome] = []
    for kind in kinds:
        outcome = execute(name, folder, deepcopy(notebook), kind, pretended)
        outcome = compared(runs[0], outcome) if runs else outcome
        runs.append(outcome)
        print("\n  ".join([outcome.row, *outcome.failures]), flush=True)
    return runs


def _gpus(pretended: int | None) -> tuple[str, str]:
    """In words, and for a file's name."""
    if pretended is not None:
        return f"{pretended} pretended GPUs", f"pretended-{pretended}-gpus"
    asks_for_a_gpu("gpu_lessons", "start it where `nvidia-smi` shows one, or try --pretend 4")
    return f"{gpus_here()} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}", device_s_name()


if __name__ == "__main__":
    sys.exit(main())
