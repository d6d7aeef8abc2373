"""`make bench`: our runner, all-reduce, DDP and pipeline against their peers, in turn, in one run. It fails no test."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version

import all_reduce
import ddp
import memory
import pipeline
import report
import runner

from course_lib.cli.machine import cores, describe_machine


def main() -> None:
    """Measure, print and write."""
    before = report.load_per_core(cores())
    if before > 0.5:
        print(f"the machine is busy (load {before:.1f} per core): ratios hold better than times, but neither well")
    print("runner against ipyparallel ...", flush=True)
    compared = runner.compare()
    print("all-reduce against gloo ...", flush=True)
    cells = all_reduce.compare()
    print("DDP against torch's ...", flush=True)
    trained = ddp.compare()
    print("pipeline against torch's ...", flush=True)
    piped = pipeline.compare()
    print("memory formulas against tensors ...", flush=True)
    agreements = memory.compare()
    results = report.Results(
        date=datetime.date.today().isoformat(),
        machine=describe_machine(),
        versions=f"Python {platform.python_version()}, torch {version('torch')}, ipyparallel {version('ipyparallel')}",
        load_before=before,
        load_after=report.load_per_core(cores()),
        runner=compared,
        all_reduce=cells,
        memory=agreements,
        ddp=trained,
        pipeline=piped,
        verdicts=[
            *runner.verdicts(compared),
            *all_reduce.verdicts(cells),
            *ddp.verdicts(trained),
            *pipeline.verdicts(piped),
        ],
    )
    print(report.markdown(results))
    print(f"written to {report.write(results, kind())}")


def kind() -> str:
    """The machine in a file's name: cores and processor family."""
    return f"{cores()}-cores-{platform.machine().replace('_', '-')}"


if __name__ == "__main__":
    main()
