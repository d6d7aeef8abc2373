"""A rank's process on another node, handled through the line to that node."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from course_lib.ranks.death import told
from course_lib.ranks.stacks import Frame, parse_stack

_JOIN_LIMIT_S = 2.0
_STACK_S = 1.2  # a node signals one rank after the other
_ENDING_S = 0.5  # how long a node may take to tell of a rank's end after its wire ended


class NodeLine:
    """Orders to a node, and a thread that hears what it says; `changed` is notified of all of it."""

    def __init__(self, wire: socket.socket, name: str, changed: threading.Condition) -> None:
        self.name, self.address = name, str(wire.getpeername()[0])
        self.is_ready = self.lost = False
        self.ports: list[int] | None = None
        self._wire, self._changed = wire, changed
        self._ranks: dict[tuple[int, int], Remote] = {}
        threading.Thread(target=self._hear, name=f"allocation {name}", daemon=True).start()

    def tell(self, **order: Any) -> None:
        """Give an order; a lost node hears none."""
        with suppress(OSError):
            self._wire.sendall(json.dumps(order).encode() + b"\n")

    def take_ports(self) -> list[int]:
        """Two ports that nobody uses on the node."""
        ports, self.ports = self.ports, None
        assert ports is not None
        return ports

    def _hear(self) -> None:
        with suppress(OSError, ValueError), self._wire.makefile("rb") as lines:
            for line in lines:
                with self._changed:
                    self._note(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self.lost = True
            for rank in self._ranks.values():
                rank.note_lost()
            self._changed.notify_all()

    def _note(self, words: dict[str, Any]) -> None:
        match words["said"]:
            case "ready":
                self.is_ready = True
            case "ports":
                self.ports = words["ports"]
            case _:
                if rank := self._ranks.get((words["pool"], words["rank"])):
                    rank.note(words)

    def join(self, key: tuple[int, int], rank: Remote) -> None:
        """From now on `rank` hears what the node tells of it."""
        with self._changed:
            self._ranks[key] = rank
            if self.lost:
                rank.note_lost()

    def leave(self, key: tuple[int, int]) -> None:
        """Nobody asks for this rank any more."""
        with self._changed:
            self._ranks.pop(key, None)

    def wait(self, come: Callable[[], bool], seconds: float, since: float | None = None) -> None:
        """Wait until something has come, or so many seconds are over, from `since` or from now on."""
        deadline = (time.monotonic() if since is None else since) + seconds
        with self._changed:
            while not come() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def close(self) -> None:
        """Hang up, upon which the node ends."""
        with suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)
        self._wire.close()

    def forget(self) -> None:
        """Let go in a process that was forked, without hanging up for the other."""
        self._wire.close()


class Remote:
    """One rank on a node."""

    def __init__(self, node: NodeLine, pool: int, rank: int) -> None:
        self._node, self._key = node, (pool, rank)
        self._order = {"pool": pool, "rank": rank}
        self._pid, self._ended, self._lost = 0, False, False
        self._status: int | None = None
        self._asked_at = self._killed_at = time.monotonic()  # who waits for many ranks waits for all at once
        self._dump, self._stack = "", ""
        self.sentinel, self._bell = socket.socketpair()
        node.join(self._key, self)

    def note(self, words: dict[str, Any]) -> None:
        """What the node tells of it."""
        match words["said"]:
            case "started":
                self._pid = words["pid"]
            case "stack":
                self._stack = words["dump"]
            case "ended":
                self._status, self._dump = words["status"], words["dump"]
                self._end()

    def note_lost(self) -> None:
        """The node says nothing more."""
        self._lost = not self._ended
        self._end()

    def _end(self) -> None:
        self._ended = True
        with suppress(OSError):
            self._bell.send(b"\0")

    @property
    def has_ended(self) -> bool:
        """Whether its node has said so, or is lost."""
        return self._ended

    @property
    def pid(self) -> int:
        """Its number on its node."""
        self._node.wait(lambda: bool(self._pid) or self._ended, _JOIN_LIMIT_S)
        return self._pid

    def kill(self) -> bool:
        """By its node."""
        self._killed_at = time.monotonic()
        self._node.tell(do="kill", **self._order)
        return not self._ended

    def end_group(self) -> None:
        """Its node has done so."""

    def join(self) -> None:
        """At most some seconds: a lost node never tells."""
        self._node.wait(lambda: self._ended, _JOIN_LIMIT_S, self._killed_at)

    def ask_for_stack(self) -> None:
        """By its node."""
        self._stack, self._asked_at = "", time.monotonic()
        self._node.tell(do="stack", **self._order)

    def stack(self) -> list[Frame]:
        """What the node has told since."""
        self._node.wait(lambda: bool(self._stack) or self._ended, _STACK_S, self._asked_at)
        return parse_stack(self._stack)

    def why_silent(self) -> str:
        """The node's name leads to whoever knows."""
        return f": nothing comes from {self._node.name}"

    def death(self) -> str:
        """As its node tells it; a lost node tells nothing."""
        self._node.wait(lambda: self._ended, _ENDING_S)
        return f"(its node {self._node.name} is lost)" if self._lost else told(self._status, self._dump)

    def close(self) -> None:
        """Hear no more of it."""
        self._node.leave(self._key)
        self.sentinel.close()
        self._bell.close()
