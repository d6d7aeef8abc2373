"""Imports make almost no garbage: to look for it meanwhile takes a quarter of their time.

Whoever looks through all that was imported once more, as Python does when it ends, needs half a second for PyTorch.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def overlooked() -> Iterator[None]:
    """Import here: garbage is looked for when that is done, and never again in what was there then."""
    looked_for, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if looked_for:
            gc.enable()


def overlook_in_this_cell(shell: Any) -> None:
    """The same for what the rest of a notebook's cell imports."""
    overlooking = overlooked()
    overlooking.__enter__()

    def cell_has_run(*_: object) -> None:
        shell.events.unregister("post_run_cell", cell_has_run)
        overlooking.__exit__(None, None, None)

    shell.events.register("post_run_cell", cell_has_run)
