"""A long run, played through event by event, and the stops that were published of two."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from course_lib.errors import four_parts
from course_lib.planner.reliability import Reliability, Shares

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class PublishedStops:
    """How often a run stopped without being asked to."""

    name: str
    gpus: int
    days: float
    stops: int
    least_goodput: float | None  # as published; None: nothing is
    source: str

    @property
    def mtbf_s(self) -> float:
        """Seconds between two stops of the whole run, on average."""
        return self.days * DAY_S / self.stops

    @property
    def gpu_mtbf_s(self) -> float:
        """Seconds between two stops that one GPU causes: everything around it is counted as its own."""
        return self.mtbf_s * self.gpus


LLAMA_3_STOPS = PublishedStops(
    name="Llama 3 405B",
    gpus=16_384,
    days=54,
    stops=419,
    least_goodput=0.9,
    source="Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.3.4 and Table 5; 47 more were planned",
)
OPT_STOPS = PublishedStops(
    name="OPT-175B",
    gpus=992,
    days=60,
    stops=35 + 70,
    least_goodput=None,
    source=(
        "Zhang et al. 2022, OPT, sections 2.4 and 2.5: over 2 months at least 35 manual restarts, and by its authors' "
        "estimate 70+ automatic ones"
    ),
)
# Grattafiori et al. 2024, section 3.3.1: what their storage writes, sustained.
LLAMA_3_STORAGE_BYTES_PER_S = 2e12


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What a run did for a while; `kind` is a field of `Shares`."""

    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class PlayedRun:
    """One run that was played through."""

    elapsed_s: float
    stops: int
    stretches: tuple[Stretch, ...]

    @property
    def shares(self) -> Shares:
        """What the time went into."""
        spent = dict.fromkeys(Shares._fields, 0.0)
        for stretch in self.stretches:
            spent[stretch.kind] += (stretch.end_s - stretch.start_s) / self.elapsed_s
        return Shares(**spent)


def play_run(run: Reliability, interval_s: float, *, elapsed_s: float, seed: int = 0) -> PlayedRun:
    """Train, write, fail and come back until `elapsed_s` is over, failures drawn by a seeded generator.

    What the end cuts off counts as training: the last checkpoint is written then.
    Raises: ValueError for an interval or a length that is not above 0.
    """
    for name, value in (("interval_s", interval_s), ("elapsed_s", elapsed_s)):
        if not value > 0:
            rule = "a run lasts, and trains between checkpoints"
            raise ValueError(four_parts("play_run", f"{name}={value:g}", rule, f"give {name} > 0"))
    return _Play(run, interval_s, elapsed_s, Random(seed)).through()


class _Play:
    """The state of a run: the clock, and when the next failure comes."""

    def __init__(self, run: Reliability, interval_s: float, elapsed_s: float, random: Random) -> None:
        self.run, self.interval_s, self.elapsed_s, self.random = run, interval_s, elapsed_s, random
        self.now, self.stops = 0.0, 0
        self.stretches: list[Stretch] = []
        self.failure = self._draw()

    def through(self) -> PlayedRun:
        """Piece after piece, to the end."""
        while self.now < self.elapsed_s:
            self._piece()
        return PlayedRun(elapsed_s=self.elapsed_s, stops=self.stops, stretches=tuple(self.stretches))

    def _piece(self) -> None:
        """Work and a checkpoint; if a failure falls into them they are lost, and the run comes back."""
        works_until = self.now + self.interval_s
        written = works_until + self.run.checkpoint_s
        if self.failure >= min(written, self.elapsed_s):
            self._spend("training", works_until)
            self._spend("checkpoints", written)
            return
        self._spend("lost_work", self.failure)
        while self.failure <= self.now < self.elapsed_s:
            self.stops += 1
            self.failure = self._draw()
            self._spend("restarts", min(self.now + self.run.restart_s, self.failure))

    def _spend(self, kind: str, until: float) -> None:
        until = min(until, self.elapsed_s)
        if until > self.now:
            self.stretches.append(Stretch(kind=kind, start_s=self.now, end_s=until))
            self.now = until

    def _draw(self) -> float:
        return self.now + self.random.expovariate(1 / self.run.mtbf_s)
