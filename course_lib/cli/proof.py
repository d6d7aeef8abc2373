"""One row of the proof table, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.comm.traces import Traffic
from course_lib.units import format_bytes, format_seconds


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one technique did in this run, and what the formulas said it would."""

    technique: str
    world_size: int  # 0 where no ranks are needed
    deviation: float  # from one device
    tolerance: float
    traffic: Traffic | None  # None where nothing is sent
    predicted: Traffic | None
    step_s: float
    state_bytes: tuple[int, ...] = ()  # by rank: states, or activations; empty for what keeps nothing
    predicted_state_bytes: tuple[int, ...] = ()  # by rank
    states_within: float = 0.0  # the share by which they may be off
    note: str = ""

    @property
    def states_off(self) -> float:
        """By which share the bytes that exist are off, on the rank where that is most."""
        pairs = zip(self.state_bytes, self.predicted_state_bytes, strict=True)
        return max((abs(found / predicted - 1) for found, predicted in pairs), default=0.0)

    @property
    def faults(self) -> list[str]:
        """What is not as it should be."""
        found = []
        if not self.deviation <= self.tolerance:
            found.append(f"deviation above {self.tolerance:g}")
        if self.traffic != self.predicted:
            found.append(f"traffic is {self.traffic}, the formula says {self.predicted}")
        if self.states_off > self.states_within:
            found.append(f"states are {self.state_bytes} bytes, the formula says {self.predicted_state_bytes}")
        return found


class Rows(NamedTuple):
    """What a file `cli/*_rows.py` has as its ROWS, for `make tour` to find."""

    lesson: int  # the table has them in this order
    prove: Callable[[int, bytes], Iterator[Row]]  # of the number of ranks and a text


COLUMNS = {
    "technique": "<34",
    "ranks": ">5",
    "max deviation": ">13",
    "bytes sent per rank": ">21",
    "formula": "<8",
    "memory": ">11",
    "formula ": "<8",
    "step time": ">9",
    "": "<6",
}


def header() -> str:
    """The table's first two lines."""
    return f"{line(list(COLUMNS))}\n{line(['-' * int(spec[1:]) for spec in COLUMNS.values()])}"


def line(cells: Sequence[str]) -> str:
    """One line of the table."""
    return "  ".join(format(cell, spec) for cell, spec in zip(cells, COLUMNS.values(), strict=True)).rstrip()


def written(row: Row) -> str:
    """A row as a line of the table, followed by what is wrong with it."""
    stated = bool(row.state_bytes)
    cells = [
        row.technique,
        str(row.world_size or "-"),
        f"{row.deviation:.1e}" if row.deviation else "0",
        span(row.traffic.sent_bytes) if row.traffic else "-",
        _equal_or_not(row.traffic == row.predicted) if row.traffic else "-",
        format_bytes(max(row.state_bytes)) if stated else "-",
        _how_near(row.states_off, row.states_within) if stated else "-",
        format_seconds(row.step_s),
        "FAILED" if row.faults else "ok",
    ]
    return "\n".join([line(cells), *(f"    {fault}" for fault in row.faults)])


def _equal_or_not(equal: bool) -> str:
    """The word in the formula columns."""
    return "equal" if equal else "DIFFERS"


def _how_near(off: float, within: float) -> str:
    """The same for memory, where a formula may leave out something small."""
    return f"{off:.2%}" if 0 < off <= within else _equal_or_not(off == 0)


def span(counts: Sequence[int]) -> str:
    """All counts in one cell: the only one, or the least and the most."""
    least, most = min(counts), max(counts)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"
