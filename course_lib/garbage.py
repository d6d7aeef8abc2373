"""Imports make almost no garbage: to look for it meanwhile takes a quarter of their time.

Whoever looks through all that was imported once more, as Python does when it ends, needs half a second for PyTorch.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_before: list[bool] = []  # whether it was looked for where each import that is under way began


def is_looked_for() -> bool:
    """Whether garbage is looked for, or will be when imports that are under way have ended."""
    return _before[0] if _before else gc.isenabled()


@contextmanager
def overlooked() -> Iterator[None]:
    """Import here: garbage is looked for when that is done, and never again in what was there then."""
    known = len(sys.modules)
    _before.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if _before.pop():
            gc.enable()


def overlook_in_this_cell(shell: Any) -> None:
    """The same for what the rest of a notebook's cell imports."""
    overlooking = overlooked()
    overlooking.__enter__()

    def cell_has_run(*_: object) -> None:
        shell.events.unregister("post_run_cell", cell_has_run)
        overlooking.__exit__(None, None, None)

    shell.events.register("post_run_cell", cell_has_run)
