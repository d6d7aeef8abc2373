"""What is asked of a ledger: who met whom, in how many steps, how many bytes between whom, in how much time.

Everything here reads events after the fact and needs no torch: pictures, exercise checks and the proof table ask
the same questions of the same record.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from course_lib.comm.ledger import Event, Kind, Ledger

Pair = tuple[int, int]  # from which rank, to which


class Counted(Protocol):
    """What a formula and a ledger both have: numbers by rank."""

    @property
    def sent_bytes(self) -> Sequence[int]: ...
    @property
    def received_bytes(self) -> Sequence[int]: ...
    @property
    def messages(self) -> Sequence[int]: ...


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes, and messages that were sent, by rank."""

    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    messages: tuple[int, ...]

    @classmethod
    def measured(cls, ledger: Ledger) -> Traffic:
        """What the ledger recorded."""
        ranks = range(ledger.world_size)
        return cls(
            sent_bytes=tuple(map(ledger.bytes_sent, ranks)),
            received_bytes=tuple(map(ledger.bytes_received, ranks)),
            messages=tuple(map(ledger.messages, ranks)),
        )

    @classmethod
    def predicted(cls, costs: Iterable[Counted]) -> Traffic:
        """What the formulas say of several calls together."""
        counts = [(cost.sent_bytes, cost.received_bytes, cost.messages) for cost in costs]
        sent, received, messages = (tuple(map(sum, zip(*column, strict=True))) for column in zip(*counts, strict=True))
        return cls(sent_bytes=sent, received_bytes=received, messages=messages)


# messages and who met whom --------------------------------------------------------------------------------------------


def sent_by_pair(events: Iterable[Event]) -> dict[Pair, list[Event]]:
    """The sends of each pair of ranks, in their order."""
    return _by_pair(events, "send")


def received_by_pair(events: Iterable[Event]) -> dict[Pair, list[Event]]:
    """The receives of each pair of ranks, in their order."""
    return _by_pair(events, "recv")


def matched_sends(events: Sequence[Event]) -> dict[int, Event]:
    """The send that each receive waited for, by `id` of the receive: the k-th from a to b met the k-th at b from a."""
    sent, received = sent_by_pair(events), received_by_pair(events)
    # A rank that was stopped half-way leaves one list longer than the other.
    pairs = [met for way in received for met in zip(received[way], sent.get(way, ()), strict=False)]
    return {id(receive): send for receive, send in pairs}


def unmatched(events: Sequence[Event]) -> str | None:
    """Say which pair of ranks has more sends than receives or the reverse; None if all are matched."""
    sent, received = sent_by_pair(events), received_by_pair(events)
    for source, target in sorted({*sent, *received}):
        went, came = (len(found.get((source, target), ())) for found in (sent, received))
        if went != came:
            return (
                f"of rank {source}'s messages to rank {target}, {went} were sent and {came} received "
                "to the end: each send needs its receive, and each handle its wait()"
            )
    return None


def received_before(send: Event, events: Iterable[Event]) -> int:
    """How many messages the sender had received when it sent this one."""
    return sum(e.kind == "recv" and e.rank == send.rank and e.end_s <= send.start_s for e in events)


def count_steps(events: Sequence[Event]) -> int:
    """Logical steps: replay the messages in rounds; per round a rank sends at most one and receives at most one.

    A message is ready once its sender has received what it had received when it sent. That order comes from one
    rank's own program, so the count does not depend on the machine's speed.
    Raises: ValueError for a record in which messages wait for one another in a circle.
    """
    queues = _sends_in_order(events)
    needed = {id(send): received_before(send, events) for queue in queues.values() for send in queue}
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


# bytes ----------------------------------------------------------------------------------------------------------------


def payloads(ledger: Ledger) -> list[int]:
    """Bytes of the tensor of each all-reduce, in the order of the calls; a ring sends 2(p-1) times as many."""
    sent: dict[int, int] = defaultdict(int)
    for event in ledger.events:
        if event.kind == "send":
            sent[event.call] += event.nbytes
    return [sent[call] // (2 * (ledger.world_size - 1)) for call in sorted(sent)]


def bytes_between_nodes(matrix: Sequence[Sequence[int]], node_size: int) -> int:
    """Bytes that left a node, all ranks together, of a ledger's matrix; rank r is in node r // node_size."""
    cells = ((a, b, nbytes) for a, row in enumerate(matrix) for b, nbytes in enumerate(row))
    return sum(nbytes for a, b, nbytes in cells if a // node_size != b // node_size)


# time -----------------------------------------------------------------------------------------------------------------


def first_start_s(events: Iterable[Event], kind: Kind) -> float:
    """When the first event of a kind began; 0 if there is none."""
    return min((event.start_s for event in events if event.kind == kind), default=0.0)


def last_end_s(events: Iterable[Event], kind: Kind) -> float:
    """When the last event of a kind was over; 0 if there is none."""
    return max((event.end_s for event in events if event.kind == kind), default=0.0)


def covered_s(stretches: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of the stretches, each from its start to its end, runs."""
    total, reached = 0.0, -inf
    for start_s, end_s in sorted(stretches):
        total += max(0.0, end_s - max(reached, start_s))
        reached = max(reached, end_s)
    return total


def call_times(events: Iterable[Event]) -> dict[int, tuple[float, float]]:
    """By its number, when each call's first message began and its last one was over."""
    found: dict[int, tuple[float, float]] = {}
    for event in events:
        if event.kind != "compute":
            start_s, end_s = found.get(event.call, (event.start_s, event.end_s))
            found[event.call] = (min(start_s, event.start_s), max(end_s, event.end_s))
    return found


def does_both_at_once(ledger: Ledger) -> bool:
    """Whether some rank computes while it communicates, by more than the rounding of their times."""
    rounding_s = 1e-4 * ledger.span_s
    for rank in range(ledger.world_size):
        mine = [event for event in ledger.events if event.rank == rank]
        compute = [event for event in mine if event.kind == "compute"]
        for event in mine:
            if event.kind != "compute" and any(
                min(event.end_s, other.end_s) - max(event.start_s, other.start_s) > rounding_s for other in compute
            ):
                return True
    return False


def _by_pair(events: Iterable[Event], kind: Kind) -> dict[Pair, list[Event]]:
    found: dict[Pair, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == kind and event.peer is not None:
            ways = event.rank, event.peer
            found[ways if kind == "send" else ways[::-1]].append(event)
    return dict(found)


def _sends_in_order(events: Sequence[Event]) -> dict[int, deque[Event]]:
    queues: dict[int, deque[Event]] = defaultdict(deque)
    for event in sorted(events, key=lambda e: e.start_s):
        if event.kind == "send":
            queues[event.rank].append(event)
    return dict(sorted(queues.items()))
