"""The sweep that the slides show: kept with its machine and date; made anew by `build.py --measure`."""

from __future__ import annotations

import json
import os
import platform
import re
from datetime import date
from pathlib import Path
from typing import NamedTuple

from course_lib import comm
from course_lib.costs import SweepPoint
from course_lib.ranks import run_ranks

FILE = Path(__file__).with_suffix(".json")
RANKS = 2  # a core for each, also on a small machine
SIZES = [4**k for k in range(5, 13)]  # 1 KiB to 16 MiB
ALGORITHMS = ["tree", "ring", "recursive_doubling", "native"]
ROUNDS, SWEEPS = 9, 12


class Sweep(NamedTuple):
    """Measured points, and where and when they were measured."""

    machine: str
    date: str
    points: list[SweepPoint]


def measure() -> None:
    """Sweep on real ranks of this machine; of each point keep the fastest sweep: other work only adds time."""
    sweeps = [
        run_ranks(comm.sweep_all_reduce, RANKS, SIZES, ALGORITHMS, ROUNDS, timeout=300, device="cpu")[0]
        for _ in range(SWEEPS)
    ]
    timings = [min(same, key=lambda timing: timing.seconds) for same in zip(*sweeps, strict=True)]
    kept = {"machine": machine(), "date": date.today().isoformat(), "points": [timing._asdict() for timing in timings]}
    FILE.write_text(json.dumps(kept, indent=1) + "\n")


def machine() -> str:
    """This machine in a few words."""
    cpus = Path("/proc/cpuinfo")
    known = re.search(r"^model name\s*:\s*(.+)$", cpus.read_text(), re.MULTILINE) if cpus.exists() else None
    name = known[1] if known else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def load() -> Sweep:
    """The sweep that was kept last."""
    kept = json.loads(FILE.read_text())
    return Sweep(kept["machine"], kept["date"], [SweepPoint(**point) for point in kept["points"]])
