"""Logical steps of recorded traffic: how many rounds it takes when every rank has one port out and one port in."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from course_lib.comm.ledger import Event


def count_steps(events: Sequence[Event]) -> int:
    """Replay the messages in rounds; per round a rank sends at most one message and receives at most one.

    A message is ready once its sender has received what it had received when it sent. That order comes from one
    rank's own program, so the count does not depend on the machine's speed.
    """
    queues = _sends_in_order(events)
    needed = {id(send): _received_before(send, events) for queue in queues.values() for send in queue}
    delivered: dict[int, int] = defaultdict(int)  # messages received so far, by rank
    steps = 0
    while any(queues.values()):
        ready = [q[0] for q in queues.values() if q and delivered[q[0].rank] >= needed[id(q[0])]]
        accepted = {send.peer: send for send in reversed(ready)}  # one per receiver, the lowest rank first
        if not accepted:
            raise ValueError("count_steps: the recorded messages wait for one another in a circle")
        for send in accepted.values():
            queues[send.rank].popleft()
            delivered[send.peer or 0] += 1
        steps += 1
    return steps


def unmatched(events: Sequence[Event], world_size: int) -> str | None:
    """Say which pair of ranks has more sends than receives or the reverse; None if all are matched."""
    for source in range(world_size):
        for target in range(world_size):
            sent = sum(e.kind == "send" and (e.rank, e.peer) == (source, target) for e in events)
            received = sum(e.kind == "recv" and (e.rank, e.peer) == (target, source) for e in events)
            if sent != received:
                return (
                    f"of rank {source}'s messages to rank {target}, {sent} were sent and {received} received "
                    "to the end: each send needs its receive, and each handle its wait()"
                )
    return None


def _sends_in_order(events: Sequence[Event]) -> dict[int, deque[Event]]:
    queues: dict[int, deque[Event]] = defaultdict(deque)
    for event in sorted(events, key=lambda e: e.start_s):
        if event.kind == "send":
            queues[event.rank].append(event)
    return dict(sorted(queues.items()))


def _received_before(send: Event, events: Sequence[Event]) -> int:
    return sum(e.kind == "recv" and e.rank == send.rank and e.end_s <= send.start_s for e in events)
