"""Ledgers of made-up runs, for the tests of figures."""

from __future__ import annotations

from course_lib.comm.ledger import Event, Ledger


def ring_ledger(ranks, calls=1, compute=False):
    """Every call: 2 (p - 1) steps of 1 ms in which each rank sends 1 KiB to its right-hand neighbour."""
    events, now = [], 50.0
    for call in range(1, calls + 1):
        if compute:
            for label in ("forward", "backward", "optimizer"):
                events += [
                    Event(rank=r, kind="compute", operation=label, start_s=now, end_s=now + 0.002) for r in range(ranks)
                ]
                now += 0.002
        for _ in range(2 * (ranks - 1)):
            what = {"nbytes": 1024, "operation": "all_reduce", "algorithm": "ring", "call": call}
            for r in range(ranks):
                right, left = (r + 1) % ranks, (r - 1) % ranks
                events.append(Event(rank=r, kind="send", peer=right, start_s=now + 0.0004, end_s=now + 0.0009, **what))
                events.append(Event(rank=r, kind="recv", peer=left, start_s=now, end_s=now + 0.001, **what))
            now += 0.001
    return Ledger(events or [Event(rank=0, kind="compute", operation="forward", start_s=0, end_s=1)], ranks)


def one_message():
    """Rank 1 waits 3 s for rank 0, whose message of 2 KiB then takes 1 s."""
    what = {"nbytes": 2048, "operation": "broadcast", "algorithm": "tree", "call": 7}
    return Ledger(
        [
            Event(rank=1, kind="recv", peer=0, start_s=100.0, end_s=104.0, **what),
            Event(rank=0, kind="send", peer=1, start_s=103.0, end_s=104.0, **what),
        ],
        2,
    )
