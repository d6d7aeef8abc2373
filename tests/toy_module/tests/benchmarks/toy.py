"""A number goes round, by us and by us."""

from __future__ import annotations

from measure import Comparison, Verdict
from page import TIMES, Benchmark, comparison_row, gate_row, table


def compare() -> list[Comparison]:
    """No time passes."""
    return [Comparison(name="once round", ours_s=(1.0,), peer_s=(2.0,))]


BENCHMARK = Benchmark(
    lesson=98,
    title="toy against itself",
    compare=compare,
    gates=lambda found: [gate_row(Verdict(figure="toy", ratio=one.ratio, gate=1, goal=2)) for one in found],
    sections=lambda found: ["## The toy", table([["what", *TIMES], *(comparison_row(one.name, one) for one in found)])],
)
