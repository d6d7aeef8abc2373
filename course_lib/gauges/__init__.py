"""Measurements: what a step really keeps, sends and rounds, here, on a GPU, or on ranks that are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.gauges.acceptance import SweepRow, busbw, sweep_all_reduce, sweep_table
    from course_lib.gauges.allocated import peak_bytes, saved_bytes
    from course_lib.gauges.one_training import plain_run
    from course_lib.gauges.own_work import Straggler, stragglers
    from course_lib.gauges.recorded_calls import (
        first_difference,
        flight_calls,
        with_named_groups,
        write_for_torchfrtrace,
    )
    from course_lib.gauges.run_log import Alarm, LoggedStep, alarms, read_run
    from course_lib.gauges.stopwatch import own_seconds
    from course_lib.gauges.track import track_step
else:
    __getattr__, __dir__ = listed_names(__name__)
