"""What one benchmark says: while it runs, in the table of gates, and in tables of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from measure import Comparison, Verdict

from course_lib.units import format_seconds
from course_lib.viz.ink.picture import Picture

TIMES = ["ours", "peer", "times faster", "lowest to highest round", "rounds"]  # the cells of a comparison
TOKENS = ["tokens/s", "torch's tokens/s"]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A file of this folder that has one as its BENCHMARK is measured by `make bench`; nothing else lists it."""

    lesson: int  # the page has them in this order
    title: str
    compare: Callable[[], list[Any]]
    gates: Callable[[list[Any]], list[list[str]]]  # rows of the table of gates
    sections: Callable[[list[Any]], list[str]]  # Markdown: headings and tables
    figures: Callable[[list[Any]], Mapping[str, Picture]] = lambda found: {}  # by the end of the file's name


class Timed(Protocol):
    """A comparison of training steps."""

    @property
    def comparison(self) -> Comparison: ...
    @property
    def tokens_per_s(self) -> tuple[float, float]: ...


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def gate_row(verdict: Verdict) -> list[str]:
    """A line of the table of gates."""
    return [verdict.figure, f"{verdict.ratio:.2f}", f"{verdict.gate:g}", f"{verdict.goal:g}", verdict.words]


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


def tokens_row(name: str, cell: Timed) -> list[str]:
    """The same, and tokens per second of both."""
    return [*comparison_row(name, cell.comparison), *map("{:,.0f}".format, cell.tokens_per_s)]
