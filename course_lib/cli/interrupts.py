"""Ctrl-C and SIGTERM, by which a shell, torchrun and Slurm end a command; SIGUSR1, by which Slurm tells it in time.

A training that has a folder is asked to stop after its step: it writes a checkpoint first. Everything else is
interrupted, once, so that what is left to tidy up is not itself cut short by the next signal. SIGUSR1 only asks: it
interrupts nothing, and one that came before there was anything to ask is not forgotten.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from course_lib.cli import time_is_up

_STDERR = 2
_ASKED = "\nstops after this step and writes a checkpoint"
_ONCE_MORE = "; once more, and it stops at once"
_TIME_IS_UP = "\nthe job's time is nearly up:"


class Interrupt:
    """What signals do: within `asks` the first one calls a function; else the first one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.heard = False  # a signal that interrupts, after which no other does
        self.asked = False  # to stop
        self.time_is_up = time_is_up.heard()  # the job's, and not the run's
        self._ask: Callable[[], object] | None = None
        self._again = True

    def hear(self, number: int, *_: object) -> None:
        """Handle a signal."""
        if number == time_is_up.NUMBER:
            self.time_is_up = True
            self._ask_once()
        elif self._ask is not None and not self.asked:
            self._ask_once()
        elif not self.heard and (self._ask is None or self._again):
            self.heard = True
            raise KeyboardInterrupt

    def _ask_once(self) -> None:
        if self._ask is not None and not self.asked:
            self.asked = True
            self._ask()

    @contextmanager
    def asks(self, ask: Callable[[], object], *, speaks: bool = True, again: bool = True) -> Iterator[None]:
        """Within this the first signal only calls `ask`, and says so if this process `speaks` for all ranks.

        Without `again` no other signal does anything: torchrun hands on to its ranks what the shell has sent them
        already, and kills those that take long.
        """

        def ask_aloud() -> None:
            ask()
            if speaks:  # print is not for a handler, which may have interrupted another print
                os.write(_STDERR, f"{self._asked_in_words()}\n".encode())

        self._ask, self._again = ask_aloud, again
        if self.time_is_up:
            self._ask_once()
        try:
            yield
        finally:
            self._ask = None

    def _asked_in_words(self) -> str:
        if self.time_is_up:
            return f"{_TIME_IS_UP} it {_ASKED.strip()}"
        return f"{_ASKED}{_ONCE_MORE * self._again}"


@contextmanager
def heard() -> Iterator[Interrupt]:
    """Within this, Ctrl-C, SIGTERM and SIGUSR1 go to the interrupt."""
    interrupt = Interrupt()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, time_is_up.NUMBER)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # a shell lets what it starts in the background ignore Ctrl-C
            signal.signal(number, interrupt.hear)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
