"""The benchmark's results as a table to read, a file to compute with, and figures."""

from __future__ import annotations

import json
import os
import pkgutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from page import Benchmark, table

from course_lib.door import public_names

HERE = Path(__file__).parent
FOLDER = HERE / "results"


@dataclass(frozen=True, kw_only=True)
class Results:
    """One run of `make bench`."""

    date: str
    machine: str
    versions: str
    load_before: float  # of one minute, per core: 0 is a quiet machine
    load_after: float
    found: dict[str, list[Any]]  # by benchmark, what it compared


def discover() -> dict[str, Benchmark]:
    """The BENCHMARK of every file beside this one that has one, in the order of the lessons."""
    names = [module.name for module in pkgutil.iter_modules([str(HERE)])]
    named = {name: import_module(name).BENCHMARK for name in names if "BENCHMARK" in public_names(HERE / f"{name}.py")}
    return dict(sorted(named.items(), key=lambda item: item[1].lesson))


def load_per_core(cores: int) -> float:
    """How busy the machine was during the last minute."""
    return os.getloadavg()[0] / cores


def markdown(results: Results, figures: Mapping[str, str]) -> str:
    """The whole page; `figures` are titles by the names of their files."""
    benchmarks = {name: benchmark for name, benchmark in discover().items() if name in results.found}
    gates = [row for name, benchmark in benchmarks.items() for row in benchmark.gates(results.found[name])]
    sections = [text for name, benchmark in benchmarks.items() for text in benchmark.sections(results.found[name])]
    return "\n\n".join(
        [
            f"# Benchmarks of {results.date}",
            f"{results.machine}; {results.versions}. Load average per core: {results.load_before:.2f} before, "
            f"{results.load_after:.2f} after, the benchmark's own processes included. Times are medians; `times "
            "faster` is the median over rounds of the peer's time over ours, taken in turn within each round.",
            "## Gates",
            table([["figure", "times faster", "gate", "goal", ""], *gates]),
            *sections,
            *(f"![{title}]({name})" for name, title in figures.items()),
            "",
        ]
    )


def write(results: Results, kind: str) -> Path:
    """Write page, numbers and figures; return the page's path."""
    FOLDER.mkdir(exist_ok=True)
    page = FOLDER / f"{results.date}-{kind}.md"
    figures = {}
    for name, benchmark in discover().items():
        for ending, picture in benchmark.figures(results.found.get(name, [])).items():
            figure = page.with_name(f"{page.stem}-{ending}.svg")
            picture.save(figure)
            figures[figure.name] = picture.title
    page.write_text(markdown(results, figures))
    page.with_suffix(".json").write_text(json.dumps(asdict(results), indent=1) + "\n")
    return page
