"""Ctrl-C and SIGTERM, by which a shell, torchrun and Slurm end a command.

A training that has a folder is asked to stop after its step: it writes a checkpoint first. Everything else is
interrupted, once, so that what is left to tidy up is not itself cut short by the next signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STDERR = 2
_ASKED = "\nstops after this step and writes a checkpoint"
_ONCE_MORE = "; once more, and it stops at once"


class Interrupt:
    """What signals do: within `asks` the first one calls a function; else the first one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.heard = False  # a signal that interrupts, after which no other does
        self.asked = False  # to stop
        self._ask: Callable[[], object] | None = None
        self._again = True

    def hear(self, *_: object) -> None:
        """Handle a signal."""
        if self._ask is not None and not self.asked:
            self.asked = True
            self._ask()
        elif not self.heard and (self._ask is None or self._again):
            self.heard = True
            raise KeyboardInterrupt

    @contextmanager
    def asks(self, ask: Callable[[], object], *, speaks: bool = True, again: bool = True) -> Iterator[None]:
        """Within this the first signal only calls `ask`, and says so if this process `speaks` for all ranks.

        Without `again` no other signal does anything: torchrun hands on to its ranks what the shell has sent them
        already, and kills those that take long.
        """

        def ask_aloud() -> None:
            ask()
            if speaks:  # print is not for a handler, which may have interrupted another print
                os.write(_STDERR, f"{_ASKED}{_ONCE_MORE * again}\n".encode())

        self._ask, self._again = ask_aloud, again
        try:
            yield
        finally:
            self._ask = None


@contextmanager
def heard() -> Iterator[Interrupt]:
    """Within this, Ctrl-C and SIGTERM go to the interrupt."""
    interrupt = Interrupt()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # a shell lets what it starts in the background ignore Ctrl-C
            signal.signal(number, interrupt.hear)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
