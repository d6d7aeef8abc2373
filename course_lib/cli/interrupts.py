"""Ctrl-C and SIGTERM, heard once: what is left to tidy up is not itself cut short by the second.

torchrun passes on to its ranks what the shell has sent to them already, and ends them if they take long.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupt:
    """The first signal raises KeyboardInterrupt; those that follow do nothing."""

    def __init__(self) -> None:
        self.heard = False

    def hear(self, *_: object) -> None:
        """Handle a signal."""
        if not self.heard:
            self.heard = True
            raise KeyboardInterrupt


@contextmanager
def heard_once() -> Iterator[Interrupt]:
    """Within this, Ctrl-C and SIGTERM, by which torchrun and Slurm end a process, interrupt it, once."""
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
