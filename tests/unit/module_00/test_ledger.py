"""The ledger's sums over a small hand-written history, and its independence of torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from course_lib.comm import ledger
from course_lib.comm.ledger import Event, Ledger


def message(sender, receiver, nbytes, *, call=1, operation="all_reduce", start_s=0.0):
    """The two events of one message."""
    labels = {"nbytes": nbytes, "call": call, "operation": operation, "algorithm": "ring"}
    return [
        Event(rank=sender, kind="send", peer=receiver, start_s=start_s, end_s=start_s + 1, **labels),
        Event(rank=receiver, kind="recv", peer=sender, start_s=start_s, end_s=start_s + 2, **labels),
    ]


@pytest.fixture
def book():
    events = [
        *message(1, 2, 50, call=2, operation="broadcast", start_s=9.0),
        *message(0, 1, 10, start_s=3.0),
        *message(0, 2, 20, start_s=4.0),
        *message(0, 1, 5, start_s=5.0),
        Event(
            rank=2, kind="native", nbytes=1000, operation="all_reduce", call=3, start_s=12.0, end_s=13.0, recorded=False
        ),
        Event(rank=0, kind="compute", operation="forward", start_s=1.0, end_s=2.5),
    ]
    return Ledger(events, world_size=3)


def test_bytes_and_messages_of_each_rank(book):
    assert [book.bytes_sent(rank) for rank in range(3)] == [35, 50, 0]
    assert [book.bytes_received(rank) for rank in range(3)] == [0, 15, 70]
    assert [book.messages(rank) for rank in range(3)] == [3, 1, 0]


def test_matrix_runs_from_row_to_column_and_sums_to_what_was_sent(book):
    assert book.matrix() == [[0, 15, 20], [0, 0, 50], [0, 0, 0]]
    assert [sum(row) for row in book.matrix()] == [book.bytes_sent(rank) for rank in range(3)]
    assert [sum(column) for column in zip(*book.matrix(), strict=True)] == [book.bytes_received(r) for r in range(3)]


def test_native_payload_is_no_recorded_message(book):
    native = book.of("all_reduce").events[-1]
    assert (native.kind, native.nbytes, native.recorded) == ("native", 1000, False)
    assert sum(book.bytes_sent(rank) for rank in range(3)) == 85


def test_calls_come_once_and_computing_is_none(book):
    assert book.calls() == [(1, "all_reduce", "ring"), (2, "broadcast", "ring"), (3, "all_reduce", "")]


def test_of_keeps_one_operation_and_the_world_size(book):
    only = book.of("broadcast")
    assert only.world_size == 3
    assert only.matrix() == [[0, 0, 0], [0, 0, 50], [0, 0, 0]]


def test_events_are_in_order_of_their_start_and_span_to_the_last_end(book):
    starts = [event.start_s for event in book.events]
    assert starts == sorted(starts)
    assert book.span_s == 12.0
    assert Ledger([], 2).span_s == 0.0


def test_events_cannot_be_changed(book):
    with pytest.raises(AttributeError):
        book.events[0].nbytes = 0


def test_a_processs_own_events_are_kept_until_cleared():
    ledger.clear()
    event = message(0, 1, 8)[0]
    ledger.record(event)
    assert ledger.current() == [event]
    ledger.clear()
    assert ledger.current() == []


def test_reading_a_ledger_needs_no_torch():
    block = "import sys; sys.modules['torch'] = None; "
    code = block + "from course_lib.comm.ledger import Ledger; print(Ledger([], 2).matrix())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[[0, 0], [0, 0]]\n"
