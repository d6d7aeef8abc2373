"""The benchmark's results as a table to read, a file to compute with, and a figure."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from all_reduce import Cell, best_algorithm
from ddp import BATCH, BUCKET_MIB, MODEL, DdpCell
from measure import Comparison, Verdict
from memory import Agreement, gate_rows, table_rows
from pipeline import PipelineCell
from pipeline import about as about_pipelines

from course_lib.costs import SweepPoint
from course_lib.units import format_bytes, format_seconds
from course_lib.viz import plot_bandwidth

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Results:
    """One run of `make bench`."""

    date: str
    machine: str
    versions: str
    load_before: float  # of one minute, per core: 0 is a quiet machine
    load_after: float
    runner: list[Comparison]
    all_reduce: list[Cell]
    ddp: list[DdpCell]
    pipeline: list[PipelineCell]
    memory: list[Agreement]
    verdicts: list[Verdict]


def load_per_core(cores: int) -> float:
    """How busy the machine was during the last minute."""
    return os.getloadavg()[0] / cores


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def comparison_row(name: str, comparison: Comparison) -> list[str]:
    """Name, both medians, ratio and its range over the rounds."""
    low, high = comparison.spread
    return [
        name,
        format_seconds(median(comparison.ours_s)),
        format_seconds(median(comparison.peer_s)),
        f"{comparison.ratio:.2f}",
        f"{low:.2f} to {high:.2f}",
        str(len(comparison.ours_s)),
    ]


def tokens_row(name: str, cell: DdpCell | PipelineCell) -> list[str]:
    """The same, and tokens per second of both."""
    return [*comparison_row(name, cell.comparison), *map("{:,.0f}".format, cell.tokens_per_s)]


def markdown(results: Results, figures: Sequence[str] = ()) -> str:
    """The whole page, with the names of its figures."""
    gates = [[v.figure, f"{v.ratio:.2f}", f"{v.gate:g}", f"{v.goal:g}", v.words] for v in results.verdicts]
    runner = [comparison_row(one.name, one) for one in results.runner]
    cells = [
        comparison_row(f"{c.world_size} | {format_bytes(c.nbytes)} | {best_algorithm(c.nbytes)}", c.comparison)
        for c in results.all_reduce
    ]
    trained = [tokens_row(f"{c.world_size} | {c.sequence} | {c.all_reduce}", c) for c in results.ddp]
    piped = [
        tokens_row(f"{c.world_size} | {c.sequence} | {c.peer.ours} | {c.peer.theirs}", c) for c in results.pipeline
    ]
    times = ["ours", "peer", "times faster", "lowest to highest round", "rounds"]
    return "\n\n".join(
        [
            f"# Benchmarks of {results.date}",
            f"{results.machine}; {results.versions}. Load average per core: {results.load_before:.2f} before, "
            f"{results.load_after:.2f} after, the benchmark's own processes included. Times are medians; `times "
            "faster` is the median over rounds of the peer's time over ours, taken in turn within each round.",
            "## Gates",
            table([["figure", "times faster", "gate", "goal", ""], *gates, *gate_rows(results.memory)]),
            "## `%%ranks` against ipyparallel, 4 ranks",
            table([["what", *times], *runner]),
            "## All-reduce on send and receive against gloo's own (float32, in place, guard and ledger off)",
            table([["ranks", "size", "algorithm", *times], *cells]),
            f"## Data parallelism against torch's, a step with AdamW ({MODEL.n_layers} layers of {MODEL.hidden_size}, "
            f"{BATCH} sequences over all ranks, buckets of {BUCKET_MIB} MiB on both sides, guard and ledger off)",
            table([["ranks", "sequence", "ours", *times, "tokens/s", "torch's tokens/s"], *trained]),
            f"## Pipeline against torch.distributed.pipelining, {about_pipelines()}",
            table([["ranks", "sequence", "ours", "torch's", *times, "tokens/s", "torch's tokens/s"], *piped]),
            "## Memory formulas against measured tensors",
            table(table_rows(results.memory)),
            *(f"![Measured bandwidth of both all-reduces]({name})" for name in figures),
            "",
        ]
    )


def points(cells: Sequence[Cell], world_size: int) -> list[SweepPoint]:
    """What the bandwidth figure draws of one number of ranks: our times and gloo's."""
    found = []
    for cell in cells:
        if cell.world_size == world_size:
            ours = best_algorithm(cell.nbytes)
            for algorithm, seconds in ((ours, cell.comparison.ours_s), ("native", cell.comparison.peer_s)):
                found.append(SweepPoint(algorithm, world_size, cell.nbytes, median(seconds)))
    return found


def write(results: Results, kind: str) -> Path:
    """Write page, numbers and figures; return the page's path."""
    FOLDER.mkdir(exist_ok=True)
    page = FOLDER / f"{results.date}-{kind}.md"
    figures = []
    for world_size in sorted({cell.world_size for cell in results.all_reduce}):
        title = f"All-reduce on {world_size} ranks: on send and receive, and gloo's own"
        figure = page.with_name(f"{page.stem}-{world_size}-ranks.svg")
        plot_bandwidth(points(results.all_reduce, world_size), title=title).save(figure)
        figures.append(figure.name)
    page.write_text(markdown(results, figures))
    page.with_suffix(".json").write_text(json.dumps(asdict(results), indent=1) + "\n")
    return page
