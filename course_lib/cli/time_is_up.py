"""SIGUSR1, by which Slurm says that a job's time is nearly up: heard from a command's first moment.

It would end a process that does not listen, and Python takes seconds to import what trains. So the handler is there
before anything else is, and notes what `interrupts` acts upon later.
"""

from __future__ import annotations

import signal

NUMBER = signal.SIGUSR1
_heard: list[int] = []


def listen() -> None:
    """Note the signal from now on, instead of ending by it."""
    signal.signal(NUMBER, lambda number, _: _heard.append(number))


def heard() -> bool:
    """Whether it has come while nobody else listened."""
    return bool(_heard)
