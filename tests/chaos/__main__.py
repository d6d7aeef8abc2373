"""`make chaos`: every fault in every part, one line each; the exit status is 1 if a line does not hold."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.chaos import on_grader, on_ranks, on_train
from tests.chaos.line import LeftOut, Line, Seen

WIDTHS = {"where": 9, "fault": 21, "what was done": 52, "s": 4, "left": 4, "lost": 34, "what was said": 110}


def all_lines() -> list[Line]:
    """The lines of all parts."""
    return [*on_ranks.lines(), *on_train.lines(), *on_grader.lines()]


def main(wanted: Iterable[Line]) -> int:
    """Try the lines, print each when it is there; return 1 if one does not hold."""
    started = time.monotonic()
    counts = {"hold": 0, "do not": 0, "left out": 0}
    print(row(*WIDTHS))
    for line in wanted:
        kind, text = report(line)
        counts[kind] += 1
        print(text, flush=True)
    print(f"{', '.join(f'{count} {kind}' for kind, count in counts.items())}; {time.monotonic() - started:.0f} s")
    return int(counts["do not"] > 0)


def report(line: Line) -> tuple[str, str]:
    """Whether a line holds, and its row in the table."""
    try:
        seen = tried(line)
    except LeftOut as reason:
        return "left out", row(line.part, line.fault, line.done, "", "", "", f"left out: {reason}")
    numbers = (f"{seen.seconds:.1f}", str(seen.left))
    text = row(line.part, line.fault, line.done, *numbers, seen.lost, seen.said or "(nothing)")
    why = line.broken(seen)
    return ("do not", f"{text}\n{'':11}DOES NOT HOLD: {why}; said: {seen.said}") if why else ("hold", text)


def tried(line: Line) -> Seen:
    """Do it, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        return line.do(Path(folder))


def row(*cells: str) -> str:
    """One row of the table; long texts are cut."""
    texts = [" ".join(cell.split()) for cell in cells]
    return "  ".join(cut(*pair).ljust(pair[1]) for pair in zip(texts, WIDTHS.values(), strict=True)).rstrip()


def cut(text: str, width: int) -> str:
    """At most `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


if __name__ == "__main__":
    sys.exit(main(all_lines()))
