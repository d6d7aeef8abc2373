"""`make bench`: what the files beside this one compare, ours and a peer in turn, in one run. It fails no test."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version

import report

from course_lib.cli.machine import cores, describe_machine


def main() -> None:
    """Measure, print and write."""
    before = report.load_per_core(cores())
    if before > 0.5:
        print(f"the machine is busy (load {before:.1f} per core): ratios hold better than times, but neither well")
    found = {}
    for name, benchmark in report.discover().items():
        print(f"{benchmark.title} ...", flush=True)
        found[name] = benchmark.compare()
    results = report.Results(
        date=datetime.date.today().isoformat(),
        machine=describe_machine(),
        versions=f"Python {platform.python_version()}, torch {version('torch')}, ipyparallel {version('ipyparallel')}",
        load_before=before,
        load_after=report.load_per_core(cores()),
        found=found,
    )
    page = report.write(results, kind())
    print(page.read_text())
    print(f"written to {page}")


def kind() -> str:
    """The machine in a file's name: cores and processor family."""
    return f"{cores()}-cores-{platform.machine().replace('_', '-')}"


if __name__ == "__main__":
    main()
