"""The record of who sent what to whom, and when: what pictures, predictions, checks and tests read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["send", "recv", "native", "compute"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that one rank did.

    Units: bytes, and seconds of `time.monotonic`, which the processes of one machine share.
    `recorded` is False for a native call: its inner sends are invisible, so bytes derived from it are modelled.
    `emulated` is True for times of the emulated clock.
    """

    rank: int
    kind: Kind
    peer: int | None = None
    nbytes: int = 0
    operation: str = ""
    algorithm: str = ""
    call: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    recorded: bool = True
    emulated: bool = False


class Ledger:
    """The events of all ranks of one run."""

    def __init__(self, events: Sequence[Event], world_size: int) -> None:
        self.events = sorted(events, key=lambda event: (event.start_s, event.rank))
        self.world_size = world_size

    def bytes_sent(self, rank: int) -> int:
        """Bytes that `rank` sent."""
        return sum(event.nbytes for event in self._of_kind("send", rank))

    def bytes_received(self, rank: int) -> int:
        """Bytes that `rank` received."""
        return sum(event.nbytes for event in self._of_kind("recv", rank))

    def messages(self, rank: int) -> int:
        """Messages that `rank` sent."""
        return len(self._of_kind("send", rank))

    def matrix(self) -> list[list[int]]:
        """Bytes from each rank (row) to each rank (column)."""
        table = [[0] * self.world_size for _ in range(self.world_size)]
        for event in self.events:
            if event.kind == "send" and event.peer is not None:
                table[event.rank][event.peer] += event.nbytes
        return table

    def calls(self) -> list[tuple[int, str, str]]:
        """Each collective call once: its number, operation and algorithm."""
        return sorted({(event.call, event.operation, event.algorithm) for event in self.events if event.call})

    def of(self, operation: str) -> Ledger:
        """Only the events of one operation."""
        return Ledger([event for event in self.events if event.operation == operation], self.world_size)

    @property
    def emulated(self) -> bool:
        """Whether its times are those of the emulated clock."""
        return any(event.emulated for event in self.events)

    @property
    def span_s(self) -> float:
        """Seconds from the first start to the last end."""
        if not self.events:
            return 0.0
        return max(event.end_s for event in self.events) - self.events[0].start_s

    def _of_kind(self, kind: Kind, rank: int) -> list[Event]:
        return [event for event in self.events if event.kind == kind and event.rank == rank]


_events: list[Event] = []


def current() -> list[Event]:
    """This process's events since the last `clear`."""
    return _events


def clear() -> None:
    """Forget this process's events."""
    _events.clear()


def record(event: Event) -> None:
    """Add one event of this process."""
    _events.append(event)
