"""The ring all-reduce in motion, turned by its size."""

from __future__ import annotations

from course_lib.viz.widgets import controls
from course_lib.viz.widgets.controls import Panel, Table
from course_lib.viz.wires.holdings import LARGEST_PICTURE
from course_lib.viz.wires.moving_ring import animate_ring
from course_lib.viz.wires.ring_steps import RingStep, ring_steps


def ring_panel() -> Panel:
    """A slider for the ranks, above the ring in motion, with a table of what each rank sends in each step."""
    return Panel(
        draw=lambda ranks: animate_ring(ranks),
        controls={"ranks": controls.slider("ranks", 4, range(2, LARGEST_PICTURE + 1))},
        presets={"2 ranks": {"ranks": 2}, "3 ranks": {"ranks": 3}, "8 ranks": {"ranks": LARGEST_PICTURE}},
        table=_sent,
    )


def _sent(*, ranks: int) -> Table:
    """A row for each step: which chunk every rank sends."""
    steps = ring_steps(ranks)[1:]
    sent = [[f"step {state.number}, {state.phase}", *_chunks(state)] for state in steps]
    return [["", *(f"rank {rank} sends" for rank in range(ranks))], *sent]


def _chunks(state: RingStep) -> list[str]:
    by_rank = {transfer.source: transfer.chunk for transfer in state.transfers}
    return [f"chunk {by_rank[rank]}" for rank in sorted(by_rank)]
