"""What the ranks print: live while they run, then one block in rank order."""

from __future__ import annotations

import time
from typing import Any

_REFRESH_S = 0.05


class Transcript:
    """Text per rank; `text()` is deterministic, whatever the order in which the ranks wrote."""

    def __init__(self, world_size: int) -> None:
        self._notes = ""
        self._width = len(str(world_size - 1))
        self._pieces: dict[int, list[str]] = {}
        self._values: dict[int, str] = {}

    def add(self, rank: int | None, text: str) -> None:
        """Append what a rank printed; None is the pool itself, whose notes come first."""
        if rank is None:
            self._notes += text
        else:
            self._pieces.setdefault(rank, []).append(text)

    def show_value(self, rank: int, text: str) -> None:
        """Append the value of a cell's last expression."""
        self._values[rank] = text

    def text(self) -> str:
        """All lines in rank order, each naming its rank; `→` marks a value, as `Out` does in a cell."""
        lines = []
        for rank in sorted({*self._pieces, *self._values}):
            printed = "".join(self._pieces.get(rank, []))
            lines += [self._line(rank, "│", line) for line in printed.splitlines()]
            mark = "→"
            for line in self._values.get(rank, "").splitlines():
                lines.append(self._line(rank, mark, line))
                mark = " "
        return self._notes + "".join(lines)

    def _line(self, rank: int, mark: str, line: str) -> str:
        return f"rank {rank:>{self._width}} {mark} {line}\n"


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

    def add(self, rank: int | None, text: str) -> None:
        """Take text and refresh the display, at most 20 times a second."""
        self._transcript.add(rank, text)
        if time.monotonic() - self._shown >= _REFRESH_S:
            self._handle.update({"text/plain": self._transcript.text()}, raw=True)
            self._shown = time.monotonic()
            self._empty = False

    def close(self) -> None:
        """Empty the display."""
        if not self._empty:
            self._handle.update({"text/plain": ""}, raw=True)
