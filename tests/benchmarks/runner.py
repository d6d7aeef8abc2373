"""`%%ranks` against ipyparallel: start, time per cell, restart."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measure import Comparison, Verdict, seconds_of
from notebook import TRIVIAL, IPyParallel, Ours, new_shell
from page import TIMES, Benchmark, comparison_row, gate_row, table

STARTS = 3
RESTARTS = 3
ROWS = 9
CELLS = 20
PAUSE_S = 0.05  # long enough for both runners to fall asleep, as between a learner's cells
GATES = {  # gate and goal
    "start to the first all-reduce": (3, 10),
    "cells in a row, each": (10, 30),
    "function calls in a row, each": (10, 30),
    "one cell after a pause": (10, 30),
    "restart to the first all-reduce": (10, 30),
}


def compare() -> list[Comparison]:
    """All comparisons of the two runners."""
    return [*starts(), *living()]


def starts() -> list[Comparison]:
    """From nothing, in a fresh process each, in turn."""
    ours, theirs = [], []
    for _ in range(STARTS):
        ours.append(fresh("ours"))
        theirs.append(fresh("ipyparallel"))
    return [
        Comparison(name=name, ours_s=tuple(one[key] for one in ours), peer_s=tuple(one[key] for one in theirs))
        for name, key in (
            ("start to a trivial cell's result", "trivial_s"),
            ("start to the first all-reduce", "ready_s"),
        )
    ]


def fresh(which: str) -> dict[str, float]:
    """Start a runner in a process of its own."""
    script = str(Path(__file__).with_name("notebook.py"))
    done = subprocess.run([sys.executable, script, which], capture_output=True, text=True, check=True)
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def living() -> list[Comparison]:
    """Both runners up at once, taking turns; the idle one waits without work."""
    ours, theirs = Ours(new_shell()), IPyParallel()
    try:
        for runner in (ours, theirs):
            runner.ready()
        cells = (lambda: ours.cell(TRIVIAL), lambda: theirs.cell(TRIVIAL))
        found = [
            in_turn("cells in a row, each", *cells, rounds=ROWS, row=CELLS),
            in_turn("function calls in a row, each", ours.call, theirs.call, rounds=ROWS, row=CELLS),
            in_turn("one cell after a pause", *cells, rounds=CELLS, pause_s=PAUSE_S),
            in_turn("restart to the first all-reduce", ours.restart, theirs.restart, rounds=RESTARTS),
        ]
    finally:
        ours.stop()
        theirs.stop()
    return found


def in_turn(
    name: str,
    ours: Callable[[], None],
    theirs: Callable[[], None],
    *,
    rounds: int,
    row: int = 1,
    pause_s: float = 0.0,
) -> Comparison:
    """First a row of ours, then one of theirs, for many rounds; the first round is a warm-up."""
    pairs: list[list[float]] = []
    for _ in range(rounds + 1):
        pairs.append([])
        for work in (ours, theirs):
            time.sleep(pause_s)
            pairs[-1].append(seconds_of(work, row))
    ours_s, peer_s = zip(*pairs[1:], strict=True)
    return Comparison(name=name, ours_s=ours_s, peer_s=peer_s)


def verdicts(comparisons: list[Comparison]) -> list[Verdict]:
    """What has a gate, held against it."""
    return [
        Verdict(figure=one.name, ratio=one.ratio, gate=GATES[one.name][0], goal=GATES[one.name][1])
        for one in comparisons
        if one.name in GATES
    ]


def sections(comparisons: list[Comparison]) -> list[str]:
    """All comparisons."""
    rows = [comparison_row(one.name, one) for one in comparisons]
    return ["## `%%ranks` against ipyparallel, 4 ranks", table([["what", *TIMES], *rows])]


BENCHMARK = Benchmark(
    lesson=0,
    title="runner against ipyparallel",
    compare=compare,
    gates=lambda comparisons: [gate_row(verdict) for verdict in verdicts(comparisons)],
    sections=sections,
)
