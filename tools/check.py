"""`make test` and `make check`: every check, and a table of the CPU seconds that each step and each module took.

Two of a step's files run at a time: ranks wait for each other much of the time. More would make a slow run look like a
hang, so what may run *beside* does so at the lowest priority; its output is shown when it has ended. What must run
*alone* waits for that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time

from tools import changed, outside, seconds, steps
from tools.grading import isolation
from tools.paths import CACHE, ROOT, quiet_kernels, unhurried
from tools.seconds import Result
from tools.steps import Step

REPORTS = CACHE / "check"
NOTHING_COLLECTED = 5  # pytest's exit status


def main(*words: str) -> int:
    """Run the steps, report each; the exit status says whether all passed."""
    arguments = parsed(words)
    wanted = list(chosen(arguments))
    missing = outside.left_out() if arguments.which == "check" and any(step.outside for step in wanted) else []
    if arguments.which == "test" or missing:
        wanted = [step for step in wanted if not step.outside]
    started = time.monotonic()
    results = run_all(
        wanted,
        {**outside.with_tools(), **quiet_kernels(), **unhurried()},
        partly=bool(arguments.only or arguments.changed),
    )
    print(seconds.table(results, time.monotonic() - started))
    if missing:
        print(f"left out: slides and browser ({'; '.join(missing)})")
    if isolation.trouble() and steps.GRADING.name in {step.name for step in wanted}:
        print(f"left out: grading in bubblewrap ({isolation.trouble()}; apt install bubblewrap)")
    good = sum(result.passed for result in results)
    print(f"{good} passed, {len(results) - good} failed")
    return int(good < len(results))


def parsed(words: tuple[str, ...]) -> argparse.Namespace:
    """Return what `make` was asked for; an empty ONLY or CHANGED counts as none."""
    parser = argparse.ArgumentParser(prog="make check", description=__doc__)
    parser.add_argument("which", choices=("test", "check"))
    parser.add_argument(
        "--only", default="", metavar="04", help="the lesson, exercises, slides and tests of one module"
    )
    parser.add_argument("--changed", default="", help="what the changes since the branch point with main touch")
    return parser.parse_args(words)


def chosen(arguments: argparse.Namespace) -> tuple[Step, ...]:
    """Return the steps that are asked for."""
    if arguments.only:
        return steps.of_module(arguments.only)
    if arguments.changed:
        files = changed.changed_files()
        run = [file for file in files if not changed.runs_the_same(file)]
        return steps.of_change(run, changed.affected_tests(run)) if files else steps.UNCHANGED
    return steps.EVERYTHING


def run_all(wanted: list[Step], environment: dict[str, str], *, partly: bool) -> list[Result]:
    """Run the steps in order, those that may share the cores beside the others, and return what came of each."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    ended: list[tuple[Result, str]] = []

    def run_beside() -> None:
        for step in wanted:
            if step.beside:
                ended.append(run(step, environment, partly=partly))

    aside = threading.Thread(target=run_beside)
    aside.start()
    results: list[Result] = []
    for step in wanted:
        if step.alone:
            aside.join()
        if not step.beside:
            print(f"\n── {step.name}", flush=True)
            results.append(run(step, environment, partly=partly)[0])
            results += show(ended)
    aside.join()
    return results + show(ended)


def show(ended: list[tuple[Result, str]]) -> list[Result]:
    """Print what ran beside and has ended, take it off the list and return the results."""
    results = []
    while ended:
        result, output = ended.pop(0)
        print(f"\n── {result.name} (ran beside)\n{output}", end="", flush=True)
        results.append(result)
    return results


def run(step: Step, environment: dict[str, str], *, partly: bool) -> tuple[Result, str]:
    """Run one step; return what came of it, and its output if it ran beside (else that is on the screen)."""
    name = "-".join(step.name.split())
    report, used = REPORTS / f"{name}.xml", REPORTS / f"{name}.cpu"
    report.unlink(missing_ok=True)
    words = [*step.command, *step.on, *([f"--junitxml={report}", "-ojunit_family=xunit1"] if step.is_pytest else [])]
    quietly = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} if step.beside else {}
    started = time.monotonic()
    ran = subprocess.run(
        [*(["nice", "-n19"] if step.beside else []), steps.PYTHON, "-m", "tools.cpu", str(used), *words],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
        **quietly,
    )
    result = Result(
        name=step.name,
        passed=ran.returncode == 0 or (partly and step.is_pytest and ran.returncode == NOTHING_COLLECTED),
        cpu_s=float(used.read_text()),
        wall_s=time.monotonic() - started,
        beside=step.beside,
        shares=seconds.of_modules(report, ran.stdout or ""),
    )
    return result, ran.stdout or ""


if __name__ == "__main__":
    os.environ.pop("PYTHONWARNINGS", None)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would each compile the course's modules
    sys.exit(main(*sys.argv[1:]))
