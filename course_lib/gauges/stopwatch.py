"""How long a piece of work keeps one thread busy, which other programs on the machine hardly change."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

_FIRST = 1  # calls that are not counted: they load and allocate what later ones find


def own_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The least of this thread's own seconds over `repeats` calls of `work`, after one call that is not counted.

    What other threads compute and what is waited for counts as nothing, so let PyTorch have a single thread.
    """
    took = []
    for _ in range(_FIRST + repeats):
        begin = thread_time()
        work()
        took.append(thread_time() - begin)
    return min(took[_FIRST:])
