"""The ring all-reduce behind a slider."""

from __future__ import annotations

from course_lib.viz.widgets.stepper import Stepper
from course_lib.viz.wires.ring import ring_all_reduce_step
from course_lib.viz.wires.ring_steps import ring_steps


def ring_stepper(world_size: int = 4) -> Stepper:
    """The ring all-reduce behind a slider, from the start to the last step.

    Raises: ValueError for more than 8 ranks.
    """
    return Stepper([ring_all_reduce_step(world_size, state.number) for state in ring_steps(world_size)])
