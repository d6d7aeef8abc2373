"""The questions that are asked of a ledger, on made-up records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.comm.ledger import Event, Ledger
from course_lib.comm.traces import (
    Traffic,
    bytes_between_nodes,
    call_times,
    count_steps,
    covered_s,
    does_both_at_once,
    first_start_s,
    last_end_s,
    matched_sends,
    payloads,
    received_before,
    received_by_pair,
    sent_by_pair,
    unmatched,
)
from course_lib.costs import comm_time
from tests.unit.viz_ledgers import ring_ledger


def messages(*sends):
    """Events of (from, to, start, end); each message is received as it is sent."""
    events = []
    for source, target, start, end in sends:
        events.append(Event(rank=source, kind="send", peer=target, nbytes=4, start_s=start, end_s=end))
        events.append(Event(rank=target, kind="recv", peer=source, nbytes=4, start_s=start, end_s=end))
    return events


def test_messages_are_matched_in_order_per_pair():
    ledger = ring_ledger(3, calls=2)
    pairs = matched_sends(ledger.events)
    receives = [event for event in ledger.events if event.kind == "recv"]
    assert len(pairs) == len(receives) == 24
    for receive in receives:
        send = pairs[id(receive)]
        assert (send.rank, send.peer) == (receive.peer, receive.rank)
        assert receive.start_s < send.start_s < receive.end_s


def test_a_rank_that_stopped_half_way_leaves_a_receive_alone():
    lone = Event(rank=1, kind="recv", peer=0, nbytes=8, start_s=0.0, end_s=1.0)
    assert matched_sends([lone]) == {}


def test_pairs_are_named_from_sender_to_receiver_on_both_sides():
    events = messages((0, 1, 0, 1), (2, 1, 0, 2), (0, 1, 1, 2))
    assert {pair: len(found) for pair, found in sent_by_pair(events).items()} == {(0, 1): 2, (2, 1): 1}
    assert {pair: len(found) for pair, found in received_by_pair(events).items()} == {(0, 1): 2, (2, 1): 1}


@pytest.mark.parametrize(
    ("left_out", "named"),
    [
        (None, None),
        ("recv", "of rank 0's messages to rank 1, 2 were sent and 1 received to the end"),
        ("send", "of rank 0's messages to rank 1, 1 were sent and 2 received to the end"),
    ],
)
def test_the_first_pair_that_did_not_meet_is_named(left_out, named):
    events = messages((0, 1, 0, 1), (1, 0, 0, 1), (0, 1, 1, 2))
    late = [event for event in events if event.start_s == 1 and event.kind == left_out]
    said = unmatched([event for event in events if event not in late])
    assert said is None if named is None else said.startswith(named)


def test_what_a_sender_had_received_is_what_had_come_to_its_end():
    events = messages((1, 0, 0, 1), (1, 0, 0, 3), (0, 2, 2, 4))
    assert received_before(sent_by_pair(events)[0, 2][0], events) == 1


@pytest.mark.parametrize(
    ("sends", "steps"),
    [
        ((), 0),
        (((0, 1, 0, 1), (0, 2, 1, 2), (0, 3, 2, 3)), 3),  # star
        (((0, 1, 0, 1), (0, 2, 1, 2), (1, 3, 1, 2)), 2),  # tree
        (((0, 1, 0, 1), (1, 2, 1, 2), (2, 3, 2, 3)), 3),  # chain
        (tuple((r, (r + 1) % 4, s, s + 1) for s in range(3) for r in range(4)), 3),  # ring
        (((1, 0, 0, 1), (2, 0, 0, 1), (3, 0, 0, 1)), 3),  # all to one port
        (((0, 1, 0, 9), (2, 3, 5, 6)), 1),  # slow, but nothing waits
    ],
)
def test_steps_are_counted_by_who_waits_for_whom(sends, steps):
    assert count_steps(messages(*sends)) == steps


def test_a_record_in_which_nobody_can_begin_is_refused():
    what = {"nbytes": 4, "start_s": 1.0, "end_s": 2.0}
    sends = [Event(rank=r, kind="send", peer=1 - r, **what) for r in (0, 1)]
    receives = [Event(rank=r, kind="recv", peer=1 - r, nbytes=4, start_s=0.0, end_s=1.0) for r in (0, 1)]
    with pytest.raises(ValueError, match="wait for one another in a circle"):
        count_steps([*sends, *receives])


def test_a_ring_s_payload_is_the_tensor():
    assert payloads(ring_ledger(4, calls=2)) == [4 * 1024, 4 * 1024]  # 4 ranks, 6 sends of 1 KiB, over 2 * 3


@pytest.mark.parametrize(("node_size", "crossing"), [(1, 4), (2, 2), (4, 0)])
def test_bytes_between_nodes_are_those_that_leave_one(node_size, crossing):
    ring = Ledger(messages(*((r, (r + 1) % 4, 0, 1) for r in range(4))), 4)
    assert bytes_between_nodes(ring.matrix(), node_size) == 4 * crossing


@pytest.mark.parametrize(
    ("stretches", "seconds"),
    [([], 0), ([(1, 3)], 2), ([(2, 4), (1, 3)], 3), ([(0, 1), (5, 6)], 2), ([(0, 9), (2, 3)], 9), ([(-2, -1)], 1)],
)
def test_time_that_is_covered_twice_counts_once(stretches, seconds):
    assert covered_s(stretches) == seconds


def test_a_call_lasts_from_its_first_start_to_its_last_end():
    ledger = ring_ledger(3, calls=2, compute=True)
    times = call_times(ledger.events)
    ends = {call: pytest.approx(pair, abs=1e-9) for call, pair in {1: (50.006, 50.01), 2: (50.016, 50.02)}.items()}
    assert times == ends
    assert call_times(event for event in ledger.events if event.kind == "compute") == {}


@pytest.mark.parametrize(("end", "both"), [(1.0, False), (1.00001, False), (1.5, True)])
def test_a_rank_does_both_at_once_if_more_than_rounding_overlaps(end, both):
    compute = Event(rank=0, kind="compute", start_s=0.0, end_s=end)
    send = Event(rank=0, kind="send", peer=1, start_s=1.0, end_s=2.0)
    assert does_both_at_once(Ledger([compute, send], 2)) == both
    assert not does_both_at_once(Ledger([compute, replace(send, rank=1, peer=0)], 2))


def test_first_starts_and_last_ends_are_of_one_kind():
    events = messages((0, 1, 2, 3), (1, 0, 1, 7))
    assert (first_start_s(events, "send"), last_end_s(events, "recv")) == (1, 7)
    assert (first_start_s(events, "compute"), last_end_s(events, "compute")) == (0, 0)


def test_traffic_comes_from_ledger_and_formulas():
    event = Event(
        rank=0, kind="send", peer=1, nbytes=12, operation="send", algorithm="", call=0, start_s=0.0, end_s=1.0
    )
    events = [event, replace(event, nbytes=4), replace(event, rank=1, kind="recv", peer=0)]
    assert Traffic.measured(Ledger(events, 2)) == Traffic(sent_bytes=(16, 0), received_bytes=(0, 12), messages=(2, 0))
    cost = comm_time("broadcast", "tree", world_size=2, length=3, itemsize=4)
    assert Traffic.predicted([cost, cost]) == Traffic(sent_bytes=(24, 0), received_bytes=(0, 24), messages=(2, 0))
