"""08.11: whatever the seed, each way to misread a trace gives another number on the made one, and is told by name."""

from __future__ import annotations

import pytest

from course_lib.checks.kit.traces import events_in
from course_lib.checks.module_08.made_trace import COMPUTE, RUN, WRONG_WAYS, exposed_in, made_trace, why_wrong

SEEDS = range(50)
MADE = [made_trace(seed) for seed in SEEDS]


@pytest.mark.parametrize("says", WRONG_WAYS)
def test_each_misreading_gives_a_number_of_its_own_at_every_seed(says):
    for seed, events in zip(SEEDS, map(events_in, MADE), strict=True):
        wrong = WRONG_WAYS[says](events)
        assert abs(wrong - exposed_in(events)) > 40, seed
        assert why_wrong(wrong, events) == says, seed


def test_what_is_exposed_is_what_a_count_of_every_half_microsecond_finds():
    events = events_in(MADE[0])
    begin = min(event.start for event in events)
    ticks = [0] * int(2 * (max(event.end for event in events) - begin) + 2)
    for event in sorted(events, key=lambda event: event.name.startswith(COMPUTE)):
        if event.name.startswith((RUN, COMPUTE)):
            span = range(round(2 * (event.start - begin)), round(2 * (event.end - begin)))
            ticks[span.start : span.stop] = [int(event.name.startswith(RUN))] * len(span)
    assert sum(ticks) / 2 == pytest.approx(exposed_in(events), abs=6)


def test_another_seed_draws_another_trace():
    assert len({exposed_in(events_in(made)) for made in MADE}) == len(MADE)
