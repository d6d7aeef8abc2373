"""A pipeline schedule in time, and what figures say about it in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from course_lib.errors import four_parts
from course_lib.schedules import (
    LABELS,
    Compute,
    Durations,
    Schedule,
    SendActivation,
    SendGradient,
    Slot,
    bubble_s,
    durations_by_rank,
    held,
    idle_s,
    problems,
    time_schedule,
)
from course_lib.viz.ink.clock import DIGITS, Clock

MOST_RANKS = 8
NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "zb-h1": "ZB-H1"}
_LETTERS = {"forward": "F", "backward": "BW", "backward input": "B", "backward weight": "W"}
_MOST_WORDS = 64  # computations of a rank that are listed


class Gap(NamedTuple):
    """A stretch of time in which a rank computes nothing."""

    rank: int
    start_s: float
    end_s: float


class Run(NamedTuple):
    """A schedule, and when everything in it happens, from 0 on."""

    schedule: Schedule
    slots: Sequence[Slot]

    @property
    def end_s(self) -> float:
        """When the last computation ends."""
        return max(slot.end_s for slot in self.computed)

    @property
    def computed(self) -> list[Slot]:
        """The slots in which a rank computes."""
        return [slot for slot in self.slots if isinstance(slot.instruction, Compute)]

    @property
    def sent(self) -> list[Slot]:
        """The messages that take time, at their senders."""
        sends = [slot for slot in self.slots if isinstance(slot.instruction, SendActivation | SendGradient)]
        return [slot for slot in sends if slot.end_s > slot.start_s]

    @property
    def idle_shares(self) -> list[float]:
        """By rank, the part of the step in which it computes nothing."""
        return [idle / self.end_s for idle in idle_s(self.computed, self.schedule.n_ranks)]

    @property
    def gaps(self) -> list[Gap]:
        """The waits of all ranks, from the beginning of the step to its end."""
        found = []
        for rank in range(self.schedule.n_ranks):
            mine = sorted((slot.start_s, slot.end_s) for slot in self.computed if slot.rank == rank)
            edges = [(0.0, 0.0), *mine, (self.end_s, self.end_s)]
            found += [Gap(rank, before[1], after[0]) for before, after in pairwise(edges)]
        return [gap for gap in found if round(gap.end_s - gap.start_s, DIGITS) > 0]

    def upto(self, seconds: float) -> Run:
        """What has ended by then."""
        return self._replace(slots=[slot for slot in self.slots if round(slot.end_s - seconds, DIGITS) <= 0])

    def what(self, slot: Slot) -> str:
        """What a ledger calls a computation, and figures too."""
        assert isinstance(slot.instruction, Compute)
        return LABELS[type(slot.instruction)]

    def chunk(self, slot: Slot) -> int:
        """Which of its rank's stages a slot is at."""
        return slot.instruction.stage // self.schedule.n_ranks


def simulate(
    operation: str, schedule: Schedule, durations: Durations | Sequence[Durations], message_s: float = 0.0
) -> Run:
    """A schedule's times.

    Raises: ValueError for more than 8 ranks, another number of durations than ranks, or lists that cannot run.
    """
    check_ranks(operation, schedule)
    if found := problems(schedule):
        raise ValueError(four_parts(operation, found[0], "a schedule is drawn as it runs", "mend its lists first"))
    each = durations_by_rank(durations, schedule.n_ranks, operation=operation)
    return Run(schedule, time_schedule(schedule, each, message_s=message_s))


def check_ranks(operation: str, schedule: Schedule) -> None:
    """Raises: ValueError for more ranks than a picture holds."""
    if schedule.n_ranks > MOST_RANKS:
        rule = f"this picture holds 1 to {MOST_RANKS} ranks"
        raise ValueError(four_parts(operation, f"{schedule.n_ranks} ranks", rule, "draw a smaller pipeline"))


def bubble_words(run: Run, clock: Clock, *, ideal: bool = True) -> str:
    """The step, and what of it the busiest rank is idle: against the step, and against the step without a bubble."""
    bubble, step = round(bubble_s(run.computed, run.schedule.n_ranks), DIGITS), run.end_s
    words = f"step {clock.says(step)}, bubble {clock.says(bubble)}: {percent(bubble / step)} of the step"
    return f"{words}, {percent(bubble / (step - bubble))} of the ideal time" if ideal else words


def percent(share: float) -> str:
    """One decimal, if it is not 0."""
    return f"{round(100 * share, 1):g}%"


def rank_words(run: Run, clock: Clock, columns: Mapping[str, Sequence[str]]) -> list[str]:
    """For each rank: what the columns say, and its computations in order."""
    letters = ", ".join(f"{letter} {what}" for what, letter in _LETTERS.items() if what in map(run.what, run.computed))
    lines = [f"each computation with its micro-batch: {letters}"]
    for rank in range(run.schedule.n_ranks):
        mine = [slot for slot in run.computed if slot.rank == rank]
        said = "; ".join([", ".join(f"{name} {cells[rank]}" for name, cells in columns.items())] * bool(columns) + [""])
        busy = clock.says(sum(slot.end_s - slot.start_s for slot in mine))
        lines.append(f"  rank {rank}: {said}computes {busy} from {clock.says(mine[0].start_s)}: {_order(run, mine)}")
    return lines


def _order(run: Run, slots: Sequence[Slot]) -> str:
    """Such as F0 F1 BW0 BW1; with several stages on a rank, each is named before its own."""
    if len(slots) > _MOST_WORDS:
        return f"{len(slots)} computations"
    parts = []
    for stage, some in groupby(slots, key=lambda slot: slot.instruction.stage):
        words = " ".join(f"{_LETTERS[run.what(slot)]}{slot.instruction.microbatch}" for slot in some)
        parts.append(f"stage {stage} {words}" if run.schedule.stages_per_rank > 1 else words)
    return ("; " if run.schedule.stages_per_rank > 1 else " ").join(parts)


def held_by_rank(schedule: Schedule) -> dict[str, list[float]]:
    """The peaks of each rank in activations of one micro-batch on one *rank*: one of v stages counts 1/v.

    The two peaks come at different times, and what is stashed is a part of the activations and their gradients: they
    are not to be added up.
    """
    peaks = [held(schedule, rank) for rank in range(schedule.n_ranks)]
    v = schedule.stages_per_rank
    return {"in flight": [peak.in_flight / v for peak in peaks], "stashed": [peak.stashed / v for peak in peaks]}
