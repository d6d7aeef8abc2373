"""Messages between two ranks: what every collective of this package is made of."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.comm import background, carry, clock, label, ledger
from course_lib.comm import call as calls
from course_lib.comm.rooms import Room, give_back, take
from course_lib.comm.switches import active
from course_lib.errors import four_parts

_RECEIVE_LIMIT = timedelta(seconds=300)


class Work:
    """A message under way. `wait()` must be called once; only then is the buffer free (send) or filled (receive)."""

    def __init__(self, what: str, finish: Callable[[], None] | None) -> None:
        self.what = what  # for the report of a hang
        self._finish = finish

    def wait(self) -> None:
        """Block until the message has passed."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def give_up(self) -> None:
        """Let nobody wait for it: what it belongs to has failed."""
        self._finish = None

    def begin_with(self, step: Callable[[], object]) -> Work:
        """Let `wait()` do `step` first; if that raises, the message is given up."""
        finish = self._finish

        def both() -> None:
            step()
            if finish is not None:
                finish()

        self._finish = both
        return self

    def __del__(self) -> None:
        if self._finish is not None:
            warnings.warn(f"{self.what}: its handle was dropped before wait()", RuntimeWarning, stacklevel=2)


class Port:
    """This rank's end of the wires during one call; `rank`, `size` and all peers count within the group."""

    def __init__(self, group: ProcessGroup, *, operation: str, algorithm: str = "", call: int = 0) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.group = group
        self.call = call
        self._places = list(range(self.size))  # of peer r within the group: a subset leaves some out
        self._names = dist.get_process_group_ranks(group)  # global ranks, for the ledger
        self._labels: dict[str, Any] = {"operation": operation, "algorithm": algorithm, "call": call}
        self._tag = calls.tag(call)
        self._recorded = active.ledger  # as it was when the call was made: a call in the background may run later
        self._last_arrival_s = 0.0
        self._lent: list[Room] = []

    def subset(self, ranks: Sequence[int]) -> Port:
        """The same call among some of its ranks, this one included; they are counted from 0 in the given order."""
        port = copy(self)
        port.rank, port.size = ranks.index(self.rank), len(ranks)
        port._places = [self._places[rank] for rank in ranks]
        port._names = [self._names[rank] for rank in ranks]
        return port

    def room(self, like: Tensor) -> Tensor:
        """Memory like that of `like`, with any numbers in it, until the call ends."""
        return self.rooms([like])[0]

    def rooms(self, like: Sequence[Tensor]) -> list[Tensor]:
        """Memory like that of each tensor, all of one dtype."""
        self._lent.append(room := take(like))
        return room.like(like)

    def close(self) -> None:
        """The call has ended well: its rooms are free for the next one."""
        give_back(self._lent)

    def isend(self, x: Tensor, peer: int) -> Work:
        """Start sending `x` to `peer`. An empty tensor is no message."""
        if x.numel() == 0:
            return Work("", None)
        started, what = clock.now_s(), f"isend to {self._names[peer]}"
        timing = clock.ports()
        if timing is None:
            work = carry.send(self.group, x, self._places[peer], self._tag)
            return Work(what, lambda: self._end("send", work, x, peer, started))
        start, end = timing.send(x.nbytes, self._names[self.rank], self._names[peer])
        header = torch.tensor([start], dtype=torch.float64, device=calls.words_device_of(self.group))
        works = [carry.send(self.group, part, self._places[peer], self._tag) for part in (header, x)]

        def finish() -> None:
            for work in works:
                work.wait()
            timing.pass_until(end)
            self._note("send", x.nbytes, peer, timing.emulated(start), timing.emulated(end))

        return Work(what, finish)

    def irecv(self, into: Tensor, peer: int) -> Work:
        """Start receiving from `peer` into `into`. An empty tensor is no message."""
        if into.numel() == 0:
            return Work("", None)
        started, what = clock.now_s(), f"irecv from {self._names[peer]}"
        timing = clock.ports()
        if timing is None:
            work = carry.recv(self.group, into, self._places[peer], self._tag)
            return Work(what, lambda: self._end("recv", work, into, peer, started))
        header = torch.empty(1, dtype=torch.float64, device=calls.words_device_of(self.group))
        works = [carry.recv(self.group, part, self._places[peer], self._tag) for part in (header, into)]

        def finish() -> None:
            for work in works:
                work.wait(_RECEIVE_LIMIT)
            end = timing.receive(header.item(), into.nbytes, self._names[peer], self._names[self.rank])
            timing.pass_until(end)
            self._note("recv", into.nbytes, peer, started, timing.emulated(end))

        return Work(what, finish)

    def isend_labelled(self, x: Tensor, peer: int) -> Work:
        """Send the label of `x` ahead of it."""
        mine = label.of(x, calls.words_device_of(self.group))
        announcing = self.group.send([mine], self._places[peer], self._tag)
        return self._tagged(mine).isend(x, peer).begin_with(announcing.wait)

    def irecv_labelled(self, into: Tensor, peer: int) -> Work:
        """Receive a label, compare it with `into`, then receive the message."""
        device = calls.words_device_of(self.group)
        mine, theirs = label.of(into, device), label.of(into, device)
        announced = self.group.recv([theirs], self._places[peer], self._tag)

        def compare() -> None:
            announced.wait(_RECEIVE_LIMIT)
            if not torch.equal(mine, theirs):
                raise ValueError(label.mismatch(theirs, mine, self._names[peer], self._names[self.rank]))

        return self._tagged(mine).irecv(into, peer).begin_with(compare)

    def send(self, x: Tensor, peer: int) -> None:
        """Send `x` to `peer` and wait until it has passed."""
        self.isend(x, peer).wait()

    def recv(self, into: Tensor, peer: int) -> None:
        """Receive from `peer` into `into`."""
        self.irecv(into, peer).wait()

    def exchange(self, x: Tensor, to: int, into: Tensor, source: int) -> None:
        """Send to one peer and receive from another at the same time."""
        receiving = self.irecv(into, source)
        sending = self.isend(x, to)
        receiving.wait()
        sending.wait()

    def in_background(self, name: str, work: Callable[[], object]) -> Work:
        """Let the communication thread do `work`; `wait` raises what went wrong there."""
        what, timing = f"{name} #{self.call}", clock.ports()
        if timing is None:
            return Work(what, background.submit(work).wait)
        run, catch_up = timing.in_background(work)
        call = background.submit(run)

        def finish() -> None:
            call.wait()
            catch_up()

        return Work(what, finish)

    def native_in_background(
        self, name: str, payload: Tensor, start: Callable[[], tuple[dist.Work, Callable[[], object]]]
    ) -> Work:
        """Start an asynchronous native call, which says what is left to do when it has ended; `wait` notes it."""
        started, (work, take) = clock.now_s(), start()

        def finish() -> None:
            work.wait()
            take()
            self._note("native", payload.nbytes, None, started, clock.now_s())

        return Work(f"{name} #{self.call}", finish)

    @contextmanager
    def native(self, payload: Tensor | None) -> Iterator[None]:
        """Note a native call and its payload; what it sends inside stays hidden."""
        start = clock.now_s()
        yield
        self._note("native", 0 if payload is None else payload.nbytes, None, start, clock.now_s())

    def _end(self, kind: ledger.Kind, work: dist.Work | carry.Copied, x: Tensor, peer: int, started: float) -> None:
        if kind == "recv":
            work.wait(_RECEIVE_LIMIT)
        else:
            work.wait()
        self._note(kind, x.nbytes, peer, started, time.monotonic())

    def _tagged(self, mine: Tensor) -> Port:
        """This port for messages of one length and dtype only."""
        port = copy(self)
        port._tag = calls.tag_of_label(label.text(mine))
        return port

    def _note(self, kind: ledger.Kind, nbytes: int, peer: int | None, start_s: float, end_s: float) -> None:
        if kind == "recv":  # posted early, it waits for the one before: a rank has one port in
            start_s = max(start_s, self._last_arrival_s)
            self._last_arrival_s = end_s
        if self._recorded:
            event = ledger.Event(
                rank=self._names[self.rank],
                kind=kind,
                peer=None if peer is None else self._names[peer],
                nbytes=nbytes,
                start_s=start_s,
                end_s=end_s,
                recorded=kind != "native",
                emulated=clock.ports() is not None,
                **self._labels,
            )
            ledger.record(event)


def isend(x: Tensor, dst: int, group: ProcessGroup | None = None) -> Work:
    """Start sending `x` to global rank `dst`; keep the handle and `wait()` for it before changing `x`."""
    port, peer = _port_to("isend", "dst", dst, group)
    return _isend(port, _sendable("isend", x), peer)


def irecv(into: Tensor, src: int, group: ProcessGroup | None = None) -> Work:
    """Start receiving from global rank `src` into `into`, which must have the message's length and dtype."""
    port, peer = _port_to("irecv", "src", src, group)
    return _irecv(port, _sendable("irecv", into), peer)


def send(x: Tensor, dst: int, group: ProcessGroup | None = None) -> None:
    """Send `x` to global rank `dst` and wait until it has passed."""
    port, peer = _port_to("send", "dst", dst, group)
    _isend(port, _sendable("send", x), peer).wait()


def recv(into: Tensor, src: int, group: ProcessGroup | None = None) -> Tensor:
    """Receive from global rank `src` into `into` and return it. Length and dtype must be those of the message."""
    port, peer = _port_to("recv", "src", src, group)
    _irecv(port, _sendable("recv", into), peer).wait()
    return into


def _isend(port: Port, x: Tensor, peer: int) -> Work:
    return port.isend_labelled(x, peer) if active.guard and x.numel() else port.isend(x, peer)


def _irecv(port: Port, into: Tensor, peer: int) -> Work:
    return port.irecv_labelled(into, peer) if active.guard and into.numel() else port.irecv(into, peer)


def _port_to(operation: str, name: str, rank: int, group: ProcessGroup | None) -> tuple[Port, int]:
    members_group = calls.resolve(group, operation)
    members = dist.get_process_group_ranks(members_group)
    others = [member for member in members if member != dist.get_rank()]
    if rank not in others:
        values = f"{name}={rank} on rank {dist.get_rank()}"
        way_out = (
            f"choose {name} in {others}" if others else "one rank sends nothing: it makes p - 1 steps, which are none"
        )
        raise ValueError(four_parts(operation, values, "the peer is another rank of the group", way_out))
    clock.finish_background()
    return Port(members_group, operation=operation), members.index(rank)


def _sendable(operation: str, x: object) -> Tensor:
    if not isinstance(x, Tensor):
        values = f"a {type(x).__name__} on rank {dist.get_rank()}"
        way_out = "pass a tensor; for x.grad to be one, x.requires_grad_() comes before what is computed from x"
        raise ValueError(four_parts(operation, values, "a message is the numbers of a tensor", way_out))
    if not x.is_contiguous():
        values = f"a tensor of shape {tuple(x.shape)} with strides {x.stride()}"
        raise ValueError(four_parts(operation, values, "a message is contiguous memory", "pass x.contiguous()"))
    return x
