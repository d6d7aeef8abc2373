"""12.10: a famous table of why a run has stopped, of which one share is wrong; and what its counts say."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import nan, sqrt
from typing import NamedTuple

from course_lib.checks.kit.sheet import PERCENT, Ask, Group, NumberExercise

_COUNTS = (148, 72, 54, 35, 32)  # Grattafiori et al. 2024, table 5: its first lines, and the shares that it prints
_PRINTED = (30.1, 17.2, 12.9, 8.4, 7.6)
_ALL, _UNEXPECTED, _DAYS, _GPUS = 466, 419, 54, 16_384
_HOUR, _DAY, _YEAR = 3600, 24, 365 * 24


class Table(NamedTuple):
    """Counts and printed shares of five lines; how many stops there were; and a smaller run that one might plan."""

    counts: tuple[int, ...]
    printed: tuple[float, ...]
    stops: int
    unexpected: int
    days: int
    gpus: int
    small_gpus: int
    write_s: float

    @property
    def wrong_line(self) -> int:
        """Whose share is not its count over the stops that nobody had planned."""
        pairs = zip(self.counts, self.printed, strict=True)
        off = [abs(100 * count / self.unexpected - share) for count, share in pairs]
        return 1 + off.index(max(off))

    @property
    def often(self) -> int:
        """Of the wrong line."""
        return self.counts[self.wrong_line - 1]

    @property
    def share(self) -> float:
        """Which is printed there."""
        return self.printed[self.wrong_line - 1] / 100

    @property
    def between_h(self) -> float:
        """Hours between two stops that nobody had planned."""
        return self.days * _DAY / self.unexpected

    @property
    def small_h(self) -> float:
        """The same for the smaller run, if GPUs stop by themselves and as often."""
        return self.between_h * self.gpus / self.small_gpus

    @property
    def interval_s(self) -> float:
        """Young's, for the large run."""
        return sqrt(2 * self.write_s * self.between_h * _HOUR)

    @property
    def lost(self) -> float:
        """Share of the time: for writing, and half an interval for each stop."""
        return self.write_s / self.interval_s + self.interval_s / 2 / (self.between_h * _HOUR)


def table(seed: int) -> Table:
    """As it was printed, unless an instructor asks for another one: there another share is wrong, by as much."""
    draw = random.Random(seed)
    printed = list(_PRINTED)
    if seed != 0:
        wrong = draw.randrange(1, 5)
        printed[0] = round(100 * _COUNTS[0] / _UNEXPECTED, 1)
        printed[wrong] = round(printed[wrong] * draw.choice((0.85, 1.15)), 1)
    small, write = (1024, 60.0) if seed == 0 else (draw.choice((64, 256, 512)), draw.choice((20.0, 45.0, 90.0)))
    return Table(_COUNTS, tuple(printed), _ALL, _UNEXPECTED, _DAYS, _GPUS, small, write)


def _true_line(number: int) -> Callable[[Table], float]:
    """It, unless it is the wrong one."""
    return lambda g: nan if number == g.wrong_line else number


_RIGHT = "that line's share is its count over the stops that nobody had planned"

_STOPS = NumberExercise(
    key="12.10",
    title="find the wrong number: why did it stop?",
    given=table,
    levels={
        "line": Group(2, (
            Ask("wrong_line", "", lambda g: g.wrong_line, {
                _RIGHT: tuple(_true_line(number) for number in range(1, 6)),
            }, collective=False, choice=True),
            Ask("right_share", "", lambda g: g.often / g.unexpected, {
                "that is over all stops. The table is about those that nobody had planned": (
                    lambda g: g.often / g.stops
                ),
                "that is what is printed there": lambda g: g.share,
                "that is over the planned stops": lambda g: g.often / (g.stops - g.unexpected),
                PERCENT: lambda g: 100 * g.often / g.unexpected,
            }, collective=False, tolerance=1e-3),
            Ask("fitting_count", "stops", lambda g: g.share * g.unexpected, {
                "that is the count as it stands there. Which count would the printed share be right for?": (
                    lambda g: g.often
                ),
                "that is a share of all stops. The other lines are shares of the unplanned ones": (
                    lambda g: g.share * g.stops
                ),
                "in percent? 30 % are 0.30": lambda g: 100 * g.share * g.unexpected,
            }, collective=False, tolerance=1e-3),
        ), "right. All counts add up to 419, so the share is wrong. In the paper a sum of such shares, 58.7 %, is what "
        "GPUs are blamed for; by the counts it is 64 %"),
        "rate": Group(2, (
            Ask("between_h", "hours", lambda g: g.between_h, {
                "with the planned ones? They hurt less, since one saves first": lambda g: g.days * _DAY / g.stops,
                "in days? Hours are asked": lambda g: g.days / g.unexpected,
                "that is how many stops an hour has": lambda g: g.unexpected / (g.days * _DAY),
                "that is between two stops of the first cause alone": lambda g: g.days * _DAY / g.counts[0],
            }, collective=False, tolerance=1e-3),
            Ask("small_h", "hours", lambda g: g.small_h, {
                "fewer GPUs stop less often": lambda g: g.between_h * g.small_gpus / g.gpus,
                "that is for the large run": lambda g: g.between_h,
                "by the square root? Stops add up over GPUs": lambda g: g.between_h * sqrt(g.gpus / g.small_gpus),
            }, follows=lambda own, g: own["between_h"] * g.gpus / g.small_gpus, collective=False, tolerance=1e-3),
            Ask("gpu_years", "years", lambda g: g.between_h * g.gpus / _YEAR, {
                "those are hours": lambda g: g.between_h * g.gpus,
                "those are days": lambda g: g.between_h * g.gpus / _DAY,
                "that is a GPU of the smaller run, which has its own time": (
                    lambda g: g.between_h * g.small_gpus / _YEAR
                ),
            }, follows=lambda own, g: own["between_h"] * g.gpus / _YEAR, collective=False, tolerance=1e-3),
        ), "right: a GPU that works for years without a stop, and a run that stops every three hours"),
        "interval": Group(2, (
            Ask("interval_s", "s", lambda g: g.interval_s, {
                "the 2 is missing": lambda g: g.interval_s / sqrt(2),
                "in hours? Both times have to be in seconds": lambda g: g.interval_s / _HOUR,
                "seconds times hours: both times have to be in seconds": lambda g: g.interval_s / sqrt(_HOUR),
                "without the root": lambda g: g.interval_s**2,
                "that is for the smaller run, which stops less often": (
                    lambda g: g.interval_s * sqrt(g.gpus / g.small_gpus)
                ),
            }, follows=lambda own, g: sqrt(2 * g.write_s * own["between_h"] * _HOUR), collective=False,
            tolerance=1e-3),
            Ask("lost", "", lambda g: g.lost, {
                "that is the writing alone. Each stop costs half an interval, too": lambda g: g.write_s / g.interval_s,
                "that is what stops cost alone. Writing costs as much": lambda g: g.lost / 2,
                "each stop costs half an interval on average, not all of it": (
                    lambda g: g.write_s / g.interval_s + g.interval_s / (g.between_h * _HOUR)
                ),
                PERCENT: lambda g: 100 * g.lost,
            }, follows=lambda own, g: (
                g.write_s / own["interval_s"] + own["interval_s"] / 2 / (own["between_h"] * _HOUR)
            ), collective=False, tolerance=1e-3),
        ), "right: at Young's interval writing costs as much as what stops undo"),
    },
    hints=(
        "Divide each count by 419, and each by 466. Four of the five shares come out for one of them.",
        "Two mistakes would explain a line that does not fit, a wrong count or a wrong share. If all counts "
        "add up, which of the two is left?",
        "A GPU's own time between stops is that of the run times the number of GPUs, since any of them stops it.",
        "Young's interval is sqrt(2 · write · between), both in seconds. In each interval one writes once, and each "
        "stop undoes half an interval on average.",
    ),
)  # fmt: skip
