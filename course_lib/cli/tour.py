"""`make tour`: run every technique of the course on real ranks, here and now, and print one proof table.

A file `*_rows.py` in this folder is found by its name; its `ROWS` prove what one lesson teaches.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import torch

from course_lib import ranks
from course_lib.cli.machine import describe_machine
from course_lib.cli.proof import Rows, header, written
from course_lib.ranks.places import check_world_size
from course_lib.training.text import describe_text, load_text

_LEGEND = (
    "max deviation: largest difference from the same computation on one device, over the largest number there\n"
    "bytes sent: in the whole run, recorded at the real sends; the formula must give each rank's bytes and messages\n"
    "memory: of the fullest rank, counted on the tensors that existed; the formula must give each rank's bytes\n"
    "  data, pipeline and tensor parallel: weights and gradients at the peak, all that SGD keeps; ZeRO and\n"
    "  checkpoint: what lasts from step to step; activations: what autograd keeps of one forward pass\n"
    "step time: of the slowest rank, one call or the median training step, with guard and ledger on\n"
    "plan: no ranks; max deviation is of the closed form from the instruction lists, step time that of the search"
)


def tour_command(arguments: Sequence[str]) -> int:
    """Run the tour on as many ranks as the arguments ask for.

    Raises: ValueError for an illegal number of ranks, or a text that is not the expected one.
    """
    parser = argparse.ArgumentParser(prog="course tour", add_help=False)
    parser.add_argument("--ranks", type=int, default=4)
    return tour(parser.parse_args(arguments).ranks)


def tour(world_size: int) -> int:
    """Print the table as it grows; return 0 if every row holds, else 1.

    Raises: ValueError for an illegal number of ranks, or a text that is not the expected one.
    """
    check_world_size(world_size)
    started = time.monotonic()
    text = load_text()
    print(f"{describe_machine()}; Python {platform.python_version()}, torch {torch.__version__}")
    print(f"text: {describe_text()}, {len(text):,} bytes; {world_size} real processes\n")
    print(header(), flush=True)
    rows = []
    failures = 0
    for found in discover():
        try:
            for row in found.prove(world_size, text):
                print(written(row), flush=True)
                rows.append(row)
        except (AssertionError, ranks.RankError) as error:
            print(f"FAILED: {error}", flush=True)
            failures += 1
    failures += sum(bool(row.faults) for row in rows)
    print("", *(row.note for row in rows if row.note), _LEGEND, sep="\n")
    print(f"\n{len(rows)} rows measured in {time.monotonic() - started:.0f} s: {_verdict(failures)}")
    return int(failures > 0)


def discover() -> list[Rows]:
    """The ROWS of every file, in the order of the lessons."""
    names = [module.name for module in iter_modules([str(Path(__file__).parent)]) if module.name.endswith("_rows")]
    rows: list[Rows] = [import_module(f"course_lib.cli.{name}").ROWS for name in names]
    return sorted(rows, key=lambda found: found.lesson)


def _verdict(failures: int) -> str:
    """The last words."""
    return f"{failures} FAILED" if failures else "every one equals one device and its formula"
