"""`%%ranks` against ipyparallel: start, time per cell, restart."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from measure import Comparison, Verdict, seconds_of
from notebook import TRIVIAL, IPyParallel, Ours, new_shell

STARTS = 3
RESTARTS = 3
CELLS = 40


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
        found = [
            in_turn("one cell", lambda: ours.cell(TRIVIAL), lambda: theirs.cell(TRIVIAL), rounds=CELLS),
            in_turn("one function call", ours.call, theirs.call, rounds=CELLS),
            in_turn("restart to the first all-reduce", ours.restart, theirs.restart, rounds=RESTARTS),
        ]
    finally:
        ours.stop()
        theirs.stop()
    return found


def in_turn(name: str, ours: Callable[[], None], theirs: Callable[[], None], *, rounds: int) -> Comparison:
    """First ours, then theirs, many times; the first pair is a warm-up."""
    pairs = [(seconds_of(ours), seconds_of(theirs)) for _ in range(rounds + 1)]
    ours_s, peer_s = zip(*pairs[1:], strict=True)
    return Comparison(name=name, ours_s=ours_s, peer_s=peer_s)


def verdicts(comparisons: list[Comparison]) -> list[Verdict]:
    """The gates: 3 times faster at start, 10 times per cell or call and at restart."""
    ratio = {comparison.name: comparison.ratio for comparison in comparisons}
    return [
        Verdict(figure="start of 4 ranks", ratio=ratio["start to the first all-reduce"], gate=3, goal=10),
        Verdict(figure="one cell or call", ratio=min(ratio["one cell"], ratio["one function call"]), gate=10, goal=30),
        Verdict(figure="restart", ratio=ratio["restart to the first all-reduce"], gate=10, goal=30),
    ]
