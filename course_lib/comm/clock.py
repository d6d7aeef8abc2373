"""The emulated clock: slow, exact links on one machine.

More ranks than cores cannot show a bubble, an overlap or a slow link in real time. Under this clock every message
takes alpha + beta x bytes of its link, and computing takes what `compute` is told; both are slept through, stretched
by `slowdown`. Nothing else takes time: each rank reckons from when its last message or computation was due to end, so
the machine's own speed does not add up. One port each way: a rank sends, and receives, one message at a time.
Computing and communication in the background are two streams, each with its own time; whoever waits for a call in
the background comes to stand at its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib.comm import background, ledger
from course_lib.comm.call import resolve, words_device_of
from course_lib.comm.switches import active, settings
from course_lib.errors import four_parts
from course_lib.hardware import Link

_START_IN_S = 0.05  # enough for every rank to hear of the common start before it comes


@dataclass(frozen=True, kw_only=True)
class EmulatedClock:
    """Links inside a node and between nodes of `node_size` ranks; one emulated second takes `slowdown` real ones."""

    inside: Link
    between: Link | None = None
    node_size: int | None = None
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        if (self.between is None) != (self.node_size is None):
            values = f"between={self.between and self.between.name}, node_size={self.node_size}"
            rule = "nodes need both a size and a link between them"
            raise ValueError(four_parts("EmulatedClock", values, rule, "give both or neither"))
        if not self.slowdown > 0:
            rule = "a slowdown is positive"
            raise ValueError(four_parts("EmulatedClock", f"slowdown={self.slowdown}", rule, "1000 suits most lessons"))

    def link(self, a: int, b: int) -> Link:
        """The link between two ranks; nodes are filled in rank order."""
        if self.between is None or self.node_size is None or a // self.node_size == b // self.node_size:
            return self.inside
        return self.between


class Ports:
    """How far each stream of this rank has come, and when its two ports are free again, in real seconds."""

    def __init__(self, clock: EmulatedClock, epoch_s: float) -> None:
        self.clock = clock
        self.epoch_s = self.out_free_s = self.in_free_s = self.background_s = epoch_s
        self._reached_s = [epoch_s, epoch_s]  # by the compute stream, and by that of communication

    @property
    def now_s(self) -> float:
        """How far this thread's stream has come; backward on a GPU has threads of its own, which compute."""
        return self._reached_s[background.is_here()]

    def duration_s(self, nbytes: int, a: int, b: int) -> float:
        """Real seconds that a message occupies a port."""
        return self.clock.link(a, b).time_s(nbytes) * self.clock.slowdown

    def send(self, nbytes: int, a: int, b: int) -> tuple[float, float]:
        """Book the out-port for one message; return its start and end."""
        start = max(self.now_s, self.out_free_s)
        self.out_free_s = start + self.duration_s(nbytes, a, b)
        return start, self.out_free_s

    def receive(self, sent_s: float, nbytes: int, a: int, b: int) -> float:
        """Book the in-port for a message whose sender started at `sent_s`; return the end."""
        self.in_free_s = max(sent_s, self.in_free_s) + self.duration_s(nbytes, a, b)
        return self.in_free_s

    def pass_until(self, due_s: float) -> None:
        """Sleep until `due_s`; a rank that is late does not sleep, and reckons on as if it were in time."""
        time.sleep(max(0.0, due_s - time.monotonic()))
        self._reached_s[background.is_here()] = max(self.now_s, due_s)

    def in_background(self, work: Callable[[], object]) -> tuple[Callable[[], None], Callable[[], None]]:
        """`work` for the communication stream, and what lets the compute stream, of this thread, wait for its end.

        It starts no earlier than it was launched, which is now.
        """
        launched_s = self.now_s
        end_s = launched_s

        def run() -> None:
            nonlocal end_s
            self.pass_until(launched_s)
            work()
            self.background_s = end_s = self.now_s

        return run, lambda: self.pass_until(end_s)

    def emulated(self, real_s: float) -> float:
        """Emulated seconds since the clock began: from 0, so that the same run always gives the same ledger."""
        return (real_s - self.epoch_s) / self.clock.slowdown


_ports: Ports | None = None


def ports() -> Ports | None:
    """The clock's state on this rank, None in real time."""
    return _ports


@contextmanager
def emulated(clock: EmulatedClock) -> Iterator[None]:
    """Run a block under `clock`; all ranks enter together. The guard rests, since its messages would take time."""
    global _ports
    background.finish_all()
    everyone = resolve(None, "emulated")
    dist.barrier()  # the ranks may come at different times, and the first call of a group is slow
    device = words_device_of(everyone)
    start = torch.tensor([time.monotonic() + _START_IN_S], dtype=torch.float64, device=device)
    dist.broadcast(start, src=0)
    _ports = Ports(clock, start.item())
    _ports.pass_until(start.item())
    try:
        with settings(guard=False):
            yield
    finally:
        background.finish_all()
        _ports = None


def finish_background() -> None:
    """Let the calls in the background end: a rank's own calls run one after the other."""
    background.finish_all()
    if _ports:
        _ports.pass_until(_ports.background_s)


def now_s() -> float:
    """The ledger's time: emulated under a clock, else real."""
    return _ports.emulated(_ports.now_s) if _ports else time.monotonic()


@contextmanager
def span(label: str) -> Iterator[None]:
    """Record a block's time as a compute event named `label`, for example "forward"."""
    start = now_s()
    yield
    if active.ledger:
        event = ledger.Event(
            rank=dist.get_rank(),
            kind="compute",
            operation=label,
            start_s=start,
            end_s=now_s(),
            emulated=_ports is not None,
        )
        ledger.record(event)


def compute(seconds: float, label: str = "forward") -> None:
    """Stand in for `seconds` of computing, stretched under the emulated clock, and record it."""
    with span(label):
        if _ports:
            _ports.pass_until(_ports.now_s + seconds * _ports.clock.slowdown)
        else:
            time.sleep(seconds)
