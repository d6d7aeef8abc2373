"""What the ranks print: the last lines live while they run, then one block in rank order."""

from __future__ import annotations

import sys
import time
from collections import deque
from itertools import chain
from typing import Any

_REFRESH_S = 0.05
_KEPT = 400_000  # characters of all ranks together; a notebook with more is slow to open
_LIVE = 8_000


class Transcript:
    """Text per rank; `text()` is deterministic, whatever the order in which the ranks wrote.

    Of a rank that prints very much the beginning and the end are kept, and a line says how much is left out.
    """

    def __init__(self, world_size: int) -> None:
        self._notes = ""
        self._world_size = world_size
        self._width = len(str(world_size - 1))
        self._printed: dict[int, _Text] = {}
        self._values: dict[int, str] = {}

    def add(self, rank: int | None, text: str) -> None:
        """Append what a rank printed; None is the pool itself, whose notes come first."""
        if rank is None:
            self._notes += text
        else:
            self._printed.setdefault(rank, _Text(_KEPT // self._world_size)).add(text)

    def show_value(self, rank: int, text: str) -> None:
        """Append the value of a cell's last expression."""
        self._values[rank] = text

    def text(self) -> str:
        """All lines in rank order, each naming its rank; `→` marks a value, as `Out` does in a cell."""
        lines = []
        for rank in sorted({*self._printed, *self._values}):
            if rank in self._printed:
                lines += [self._line(rank, "│", line) for line in self._printed[rank].lines()]
            mark = "→"
            value = _Text(_KEPT // self._world_size)
            value.add(self._values.get(rank, ""))
            for line in value.lines():
                lines.append(self._line(rank, mark, line))
                mark = " "
        return self._notes + "".join(lines)

    def latest(self) -> str:
        """The last lines of each rank, few enough to be shown again and again."""
        lines = []
        for rank, printed in sorted(self._printed.items()):
            lines += [self._line(rank, "│", line) for line in printed.last_lines(_LIVE // self._world_size)]
        return self._notes + "".join(lines)

    def _line(self, rank: int, mark: str, line: str) -> str:
        return f"rank {rank:>{self._width}} {mark} {line}\n"


def write_out(text: str) -> None:
    """Write to stdout; one that knows fewer letters gets the others as escapes, and the results are not lost."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


class _Text:
    """A text of which at most `limit` characters are kept: half at the beginning, half at the end."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head: list[str] = []
        self._room = self._half  # left in the head
        self._tail: deque[str] = deque()
        self._held = 0  # characters in the tail
        self._length = 0

    def add(self, text: str) -> None:
        self._length += len(text)
        if self._room:
            self._head.append(text[: self._room])
            text, self._room = text[self._room :], max(0, self._room - len(text))
        if text:
            self._tail.append(text[-self._half :])
            self._held += len(self._tail[-1])
        while self._tail and self._held - len(self._tail[0]) >= self._half:
            self._held -= len(self._tail.popleft())

    def lines(self) -> list[str]:
        left_out = self._length - 2 * self._half
        head, tail = "".join(self._head), "".join(self._tail)[-self._half :]
        if left_out <= 0:
            return (head + tail).splitlines()
        return [*head.splitlines(), f"… {left_out:,} characters are left out here …", *tail.splitlines()]

    def last_lines(self, limit: int) -> list[str]:
        pieces: list[str] = []
        found = 0
        for piece in chain(reversed(self._tail), reversed(self._head)):
            if found >= limit:
                break
            pieces.append(piece)
            found += len(piece)
        last = "".join(reversed(pieces))[-limit:]
        before = self._length - len(last)
        return [*[f"… {before:,} characters before this …"] * (before > 0), *last.splitlines()]


class LiveView:
    """One notebook display that follows a transcript and is empty before and after.

    nbval compares a display's first frame only, so an empty one keeps notebooks comparable; the lasting text is
    printed once, as a stream.
    """

    def __init__(self, transcript: Transcript) -> None:
        from IPython.core.display_functions import DisplayHandle

        self._transcript = transcript
        self._handle: Any = DisplayHandle()
        self._shown = time.monotonic()
        self._empty = True
        self._handle.display({"text/plain": ""}, raw=True)

    def announce(self, text: str) -> None:
        """Show at once what is going on, until the ranks have something to show."""
        self._handle.update({"text/plain": text}, raw=True)
        self._empty = False

    def add(self, rank: int | None, text: str) -> None:
        """Take text and refresh the display, at most 20 times a second."""
        self._transcript.add(rank, text)
        if time.monotonic() - self._shown >= _REFRESH_S:
            self._handle.update({"text/plain": self._transcript.latest()}, raw=True)
            self._shown = time.monotonic()
            self._empty = False

    def close(self) -> None:
        """Empty the display."""
        if not self._empty:
            self._handle.update({"text/plain": ""}, raw=True)
