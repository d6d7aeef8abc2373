"""How many activations a rank holds at once, counted along its list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from course_lib.schedules.instructions import Backward, BackwardInput, BackwardWeight, Forward, Schedule
from course_lib.schedules.timing import Slot


@dataclass(frozen=True, kw_only=True)
class Held:
    """The most that a rank holds at one time, each in activations of one micro-batch at one stage."""

    in_flight: int  # forward done, no backward yet
    stashed: int  # what the weights' gradients still need, after the input's gradient


def held(schedule: Schedule, rank: int) -> Held:
    """Walk through a rank's list and keep the peaks."""
    in_flight = stashed = most_in_flight = most_stashed = 0
    for compute in schedule.computes(rank):
        if isinstance(compute, Forward):
            in_flight += 1
        elif isinstance(compute, Backward | BackwardInput):
            in_flight -= 1
        if isinstance(compute, BackwardInput):
            stashed += 1
        elif isinstance(compute, BackwardWeight):
            stashed -= 1
        most_in_flight = max(most_in_flight, in_flight)
        most_stashed = max(most_stashed, stashed)
    return Held(in_flight=most_in_flight, stashed=most_stashed)


def in_flight_over_time(slots: Iterable[Slot], rank: int) -> Iterator[tuple[float, int]]:
    """(when, how many from then on): an activation is there from the start of its forward to the end of its backward.

    Units: seconds; activations of one micro-batch at one stage.
    """
    changes = []
    for slot in slots:
        if slot.rank != rank:
            continue
        if isinstance(slot.instruction, Forward):
            changes.append((slot.start_s, 1))
        elif isinstance(slot.instruction, Backward | BackwardInput):
            changes.append((slot.end_s, -1))
    number = 0
    for time, some in groupby(sorted(changes), key=lambda change: change[0]):
        number += sum(change for _, change in some)  # what ends makes room for what begins
        yield time, number
