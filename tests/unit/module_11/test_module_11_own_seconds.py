"""Seconds of one thread: what it computes counts, what it waits for does not, and the first call never."""

from __future__ import annotations

import time

from course_lib.gauges import own_seconds


def test_waiting_is_not_counted_and_computing_is():
    def waits():
        time.sleep(0.02)

    def computes():
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    assert own_seconds(waits, repeats=2) < 0.02 <= own_seconds(computes, repeats=2)


def test_the_first_call_is_not_counted():
    calls = []

    def work():
        end = time.thread_time() + (0.0 if not calls else 0.01)
        calls.append(1)
        while time.thread_time() < end:
            pass

    assert own_seconds(work, repeats=3) >= 0.01 and len(calls) == 4
