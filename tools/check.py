"""`make test` and `make check`: every check, one after the other, and a table of what each took.

Files that start ranks run one at a time: a machine with more work than cores would make a slow run look like a hang.
The unit tests start none and share two cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

from tools import outside
from tools.paths import DEVELOPER, ROOT, python_of, quiet_kernels

PYTHON = str(python_of(DEVELOPER))
PYTEST = (PYTHON, "-m", "pytest", "-q")
NBVAL = (
    *PYTEST,
    "--nbval",
    "--nbval-current-env",
    "--nbval-sanitize-with=tests/notebooks/sanitize.cfg",
    "--nbval-cell-timeout=60",
    "--timeout=0",  # nbval has its own limit per cell
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of the check."""

    name: str
    command: tuple[str, ...]


PYTHON_ALONE = (
    Step(name="lint", command=(PYTHON, "-m", "ruff", "check", ".")),
    Step(name="format", command=(PYTHON, "-m", "ruff", "format", "--check", "-q", ".")),
    Step(name="types", command=(PYTHON, "-m", "mypy")),
    Step(name="notebooks follow their sources", command=(PYTHON, "-m", "tools.build_notebooks", "--check")),
    Step(name="exercises follow their masters", command=(PYTHON, "tools/build_exercises.py", "--check")),
    Step(name="unit tests", command=(*PYTEST, "-n2", "--dist=worksteal", "tests/unit", "tests/notebooks")),
    Step(name="rank tests", command=(*PYTEST, "tests/ranks")),
    Step(name="notebooks and solutions, strict", command=(*NBVAL, "notebooks", "exercises/solutions")),
    Step(name="stubs, mutants, grading", command=(*PYTEST, "tests/grading")),
)
OUTSIDE = (
    Step(name="slides", command=(PYTHON, "slides/build.py", "--check")),
    Step(name="slide check's own tests", command=(*PYTEST, "tests/slides")),
    Step(name="browser", command=(*PYTEST, "tests/browser")),
)


def main(which: str) -> int:
    """Run the steps, report each; the exit status says whether all passed."""
    steps = list(PYTHON_ALONE)
    missing: list[str] = []
    if which == "check":
        missing = outside.left_out()
        steps += [] if missing else OUTSIDE
    environment = {**outside.with_tools(), **quiet_kernels()}
    results = [run(step, environment) for step in steps]
    print_table(steps, results)
    if missing:
        print(f"left out: slides and browser ({'; '.join(missing)})")
    return int(not all(passed for passed, _ in results))


def run(step: Step, environment: dict[str, str]) -> tuple[bool, float]:
    """Run one step with its output on the screen; return whether it passed, and its seconds."""
    print(f"\n── {step.name}", flush=True)
    started = time.monotonic()
    code = subprocess.call(step.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
    return code == 0, time.monotonic() - started


def print_table(steps: list[Step], results: list[tuple[bool, float]]) -> None:
    """Print one line per step and the counts."""
    print()
    for step, (passed, seconds) in zip(steps, results, strict=True):
        print(f"{'ok    ' if passed else 'FAILED'} {seconds:6.1f} s  {step.name}")
    good = sum(passed for passed, _ in results)
    total = sum(seconds for _, seconds in results)
    print(f"in all {total / 60:.1f} min")
    print(f"{good} passed, {len(steps) - good} failed")


if __name__ == "__main__":
    os.environ.pop("PYTHONWARNINGS", None)
    sys.exit(main(sys.argv[1]))
