"""A pipeline's step as it was simulated, and below it as it ran, on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from course_lib.comm.ledger import Event, Ledger
from course_lib.errors import four_parts
from course_lib.schedules import (
    LABELS,
    Durations,
    Instruction,
    Schedule,
    SendActivation,
    SendGradient,
    Slot,
    time_schedule,
)
from course_lib.viz.ink.clock import clock_of
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.schedules.chart import draw_panels, panel_words
from course_lib.viz.schedules.runs import Run, check_ranks
from course_lib.viz.wires.timeline import kind_of

_LANE = 28.0  # pixels
_SIMULATED, _RAN = "simulated", "run"


def plot_schedule_run(
    schedule: Schedule,
    ledger: Ledger,
    durations: Durations | Sequence[Durations],
    *,
    message_s: float = 0.0,
    title: str = "Simulated, and run",
    subtitle: str = "",
) -> Drawing:
    """The simulated lanes of one step, and below them those of a run under the same schedule, from its ledger.

    `durations` hold for all ranks, or are one for each, as `training.techniques.stages` takes them. The run begins with
    its first computation; the ledger has no micro-batches, so the run's are those of the schedule, in its order.
    Raises: ValueError for a ledger whose ranks did not compute what the schedule says, or more than 8 ranks.
    """
    check_ranks("plot_schedule_run", schedule)
    simulated = Run(schedule, time_schedule(schedule, durations, message_s=message_s))
    runs = {_SIMULATED: simulated, _RAN: Run(schedule, _slots(schedule, ledger, with_messages=message_s > 0))}
    clock = clock_of(durations, max(run.end_s for run in runs.values()))
    late = round(runs[_RAN].end_s / simulated.end_s - 1, 3) + 0.0  # no -0.0
    ends = f"the simulation ends after {clock.says(simulated.end_s)}, the run after {clock.says(runs[_RAN].end_s)}"
    subtitle = subtitle or f"{ends} ({late:+.1%})"
    kinds: list[Kind] = ["formula", kind_of(ledger)]
    canvas = draw_panels(runs, clock, lane=_LANE, title=title, subtitle=subtitle, kinds=kinds)
    shares = zip(*(run.idle_shares for run in runs.values()), strict=True)
    lines = [f"  rank {rank}: idle {one:.1%} {_SIMULATED}, {two:.1%} {_RAN}" for rank, (one, two) in enumerate(shares)]
    words = "\n".join([subtitle, *panel_words(runs, clock), *lines])
    return Drawing(canvas, title=title, description=words, kinds=kinds)


def _slots(schedule: Schedule, ledger: Ledger, *, with_messages: bool) -> list[Slot]:
    """The k-th computation of a rank was the k-th of its list, and so with its messages."""
    slots: list[Slot] = []
    for rank in range(schedule.n_ranks):
        mine = [event for event in ledger.events if event.rank == rank]
        computed = [event for event in mine if event.kind == "compute" and event.operation in LABELS.values()]
        planned = list(schedule.computes(rank))
        if [event.operation for event in computed] != [LABELS[type(one)] for one in planned]:
            values = f"rank {rank} computed {len(computed)} times in the ledger, its list has {len(planned)}"
            rule, way_out = "the ledger is of one step of this schedule", "clear it before the step, draw that schedule"
            raise ValueError(four_parts("plot_schedule_run", values, rule, way_out))
        slots += [_slot(event, one) for event, one in zip(computed, planned, strict=True)]
        sent = [event for event in mine if event.operation == "isend"] if with_messages else []
        sends = [one for one in schedule.lists[rank] if isinstance(one, SendActivation | SendGradient)]
        slots += [_slot(event, one) for event, one in zip(sent, sends, strict=False)]  # a tie's gradient follows
    origin = min(slot.start_s for slot in slots)
    return [replace(slot, start_s=slot.start_s - origin, end_s=slot.end_s - origin) for slot in slots]


def _slot(event: Event, instruction: Instruction) -> Slot:
    return Slot(rank=event.rank, instruction=instruction, start_s=event.start_s, end_s=event.end_s)
