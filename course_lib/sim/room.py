"""How sure it is that a run fits: what formulas say of memory is off by some percent, as measured peaks show."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, log, sqrt

import numpy as np

from course_lib.sim.constants import load_constants
from course_lib.sim.runs import Run
from course_lib.sim.spread import quantiles

LIKELY = 0.5  # from this chance on a run is said to fit
_MIDDLE = (0.16, 0.84)  # of a normal distribution lie so far from its median as its standard deviation


def spread_of_peaks(runs: Sequence[Run]) -> tuple[float, float]:
    """Of log(measured/predicted) the median and the standard deviation, by what the middle two thirds show.

    A source of n runs weighs sqrt(n).
    """
    logs = np.array([log(run.memory_bytes / run.seen()) for run in runs if run.memory_bytes])
    low, middle, high = quantiles(logs, [run.source for run in runs], (_MIDDLE[0], 0.5, _MIDDLE[1]))
    return float(middle), float(high - low) / 2


def chance_of(run: Run, recompute: str | None = None) -> float:
    """That a run fits; with another recompute than the row's, if one is given."""
    return chance_to_fit(float(run.memory(recompute).total[0]), run.room_bytes)


def chance_to_fit(needed_bytes: float, room_bytes: float) -> float:
    """The share of such runs whose peak stays within the room."""
    middle, deviation = load_constants().memory
    return (1 + erf((log(room_bytes / needed_bytes) - middle) / deviation / sqrt(2))) / 2
