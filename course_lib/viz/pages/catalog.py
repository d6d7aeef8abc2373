"""Which panels stand on pages, by the name of their page."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.viz.memory.fields import memory_panel
from course_lib.viz.memory.what_fits import what_fits_panel
from course_lib.viz.memory.zero_stages import zero_panel
from course_lib.viz.schedules.fields import schedule_panel
from course_lib.viz.widgets.controls import Panel
from course_lib.viz.wires.ring_fields import ring_panel

PANELS: dict[str, Callable[[], Panel]] = {
    "memory": memory_panel,
    "what_fits": what_fits_panel,
    "zero": zero_panel,
    "schedule": schedule_panel,
    "ring": ring_panel,
}
