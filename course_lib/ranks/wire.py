"""Messages between the notebook and its ranks: frames on a pair of sockets, and no end of it that could hang for ever.

The notebook's end never blocks, so each wait there can have a limit, in the middle of a message too. A rank's end
blocks: nothing else is waiting for it. Threads of a rank and processes that it forked speak on the same socket;
every frame therefore names its process and the task that it belongs to, and is short enough to be written at once.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from enum import IntEnum
from typing import NamedTuple

_HEAD = struct.Struct("=BIIQ")  # kind, task number, process, length
_PIECE_BYTES = 32_000  # the kernel takes that much as a whole, so frames of several processes cannot mix
_TEXT_CHARACTERS = _PIECE_BYTES // 4
_READ_BYTES = 2**16  # more would be a new mapping of memory for each read


class Kind(IntEnum):
    """What a frame holds: printed text, a part of an answer, its last part, or for how long not to lose patience."""

    OUTPUT = 0
    PART = 1
    ANSWER = 2
    MORE_TIME = 3


class Message(NamedTuple):
    """A printed text or a whole answer, and which process sent it for which task."""

    kind: int
    number: int
    process: int
    content: bytearray


class RankEnd:
    """A rank's end: its calls block until the notebook has taken, or sent, what they are about."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)  # a thread that the child lacks may hold it

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def say(self, text: str, number: int) -> None:
        """Send printed text for task `number`."""
        for start in range(0, len(text), _TEXT_CHARACTERS):
            piece = text[start : start + _TEXT_CHARACTERS].encode(errors="backslashreplace")
            self._send(Kind.OUTPUT, number, piece)

    def ask_for_time(self, seconds: float, number: int) -> None:
        """Let the limit of task `number` begin anew, with so many seconds."""
        self._send(Kind.MORE_TIME, number, str(seconds).encode())

    def answer(self, content: bytes, number: int) -> None:
        """Send the answer to task `number`."""
        rest = memoryview(content)
        while len(rest) > _PIECE_BYTES:
            self._send(Kind.PART, number, rest[:_PIECE_BYTES])
            rest = rest[_PIECE_BYTES:]
        self._send(Kind.ANSWER, number, rest)

    def hear(self) -> Message:
        """Wait for the notebook's next message. Raises: EOFError if there is no notebook any more."""
        kind, number, process, length = _HEAD.unpack(self._receive(_HEAD.size))
        return Message(kind, number, process, self._receive(length))

    def _send(self, kind: Kind, number: int, piece: bytes | memoryview) -> None:
        frame = b"".join((_HEAD.pack(kind, number, os.getpid(), len(piece)), piece))
        with self._lock:
            self._wire.sendall(frame)

    def _receive(self, length: int) -> bytearray:
        content = bytearray(length)
        rest = memoryview(content)
        while rest:
            count = self._wire.recv_into(rest)
            if not count:
                raise EOFError("the notebook's end of the wire is closed")
            rest = rest[count:]
        return content


class NotebookEnd:
    """The notebook's end of one rank's wire: takes and gives what goes at once, keeps the rest."""

    def __init__(self, wire: socket.socket) -> None:
        wire.setblocking(False)
        self._wire = wire
        self._outbox: deque[memoryview] = deque()
        self._inbox = bytearray()
        self._parts: dict[int, bytearray] = {}  # by process: the answer that has come so far

    def fileno(self) -> int:
        """For `select`."""
        return self._wire.fileno()

    def close(self) -> None:
        """Let the rank know that nobody listens any more."""
        self._wire.close()

    def put(self, number: int, content: bytes) -> None:
        """Send a message, as far as the wire takes it; `flush` sends the rest."""
        head = _HEAD.pack(Kind.ANSWER, number, os.getpid(), len(content))
        if len(content) > _PIECE_BYTES:  # not copied, for many ranks may get the same
            self._outbox += (memoryview(head), memoryview(content))
        else:
            self._outbox.append(memoryview(head + content))
        self.flush()

    def flush(self) -> None:
        """Send what the wire takes now. A wire without a reader takes all: the end of its process tells more."""
        try:
            while self._outbox:
                sent = self._wire.send(self._outbox[0])
                if sent < len(self._outbox[0]):
                    self._outbox[0] = self._outbox[0][sent:]
                else:
                    self._outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()

    @property
    def unsent(self) -> int:
        """Bytes that the rank has not taken yet."""
        return sum(map(len, self._outbox))

    @property
    def received(self) -> int:
        """Bytes of an answer whose end has not come yet."""
        return sum(map(len, self._parts.values()))

    def take(self) -> list[Message]:
        """The messages that have come meanwhile. Raises: EOFError once nobody is left who could send one."""
        try:
            data = self._wire.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            raise EOFError("the rank's end of the wire is closed")
        self._inbox += data
        return self._whole_messages()

    def _whole_messages(self) -> list[Message]:
        messages = []
        start = 0
        while len(self._inbox) - start >= _HEAD.size:
            kind, number, process, length = _HEAD.unpack_from(self._inbox, start)
            end = start + _HEAD.size + length
            if len(self._inbox) < end:
                break
            piece = self._inbox[start + _HEAD.size : end]
            start = end
            if kind == Kind.PART:
                self._parts.setdefault(process, bytearray()).extend(piece)
                continue
            if kind == Kind.ANSWER and process in self._parts:
                whole = self._parts.pop(process)
                whole += piece
                piece = whole
            messages.append(Message(kind, number, process, piece))
        del self._inbox[:start]
        return messages
