"""Exercise 02.12's second clock, on times that are written here: which neighbour a learner has measured as well."""

from __future__ import annotations

import pytest

from course_lib.checks.module_02.on_the_clock import off_the_clock
from course_lib.ranks.counted import Call
from course_lib.ranks.script import Ended

SIZE, REPEATS = 1024, 5
ITSELF, PYTHON = 3e-4, 5e-5  # seconds of each all-reduce, and of what Python does between two calls


def a_rank(before, after):
    """A barrier, the all-reduce and a barrier again in each repeat; those of the barriers take so many seconds."""
    calls, waits, clock = [], [], 0.0
    for _ in range(REPEATS):
        for operation, size, seconds in (("barrier", 0, before), ("all_reduce", SIZE, ITSELF), ("barrier", 0, after)):
            calls.append(Call(operation, size, 2, 1, began=clock))
            clock += seconds
            waits.append(clock)
            clock += PYTHON
    return Ended(pid=1, status=0, printed="", problems="", calls=tuple(calls), waits=tuple(waits))


@pytest.mark.parametrize(("before", "after"), [(2e-4, 4e-4), (4e-4, 2e-4)])
@pytest.mark.parametrize("measured", ["before", "after"])
def test_the_neighbour_that_is_measured_too_is_named_though_both_would_fit_in(before, after, measured):
    told = ITSELF + 2 * PYTHON + {"before": before, "after": after}[measured]
    reason = off_the_clock(a_rank(before, after), [[told] * REPEATS], {"sizes": [SIZE]})
    said = {"before": "reach back to where the barrier before", "after": "reach on to where the barrier after"}
    assert said[measured] in reason


def test_an_all_reduce_alone_is_right():
    assert off_the_clock(a_rank(2e-4, 4e-4), [[ITSELF + PYTHON] * REPEATS], {"sizes": [SIZE]}) is None
