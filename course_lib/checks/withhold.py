"""Holds back what a cell would still show, so that a figure does not answer the question above it."""

from __future__ import annotations

import sys

from IPython.core.getipython import get_ipython
from IPython.utils.capture import capture_output

_state = {"holding": False}


def rest_of_cell() -> None:
    """Show nothing more of the notebook cell that runs: no text, no figure, no value of its last line.

    The cell itself runs to its end, warnings and errors are still shown, and the next cell shows everything again.
    Outside of a notebook nothing is held back.
    """
    shell = get_ipython()
    if shell is None or _state["holding"]:
        return
    held = capture_output(stderr=False)

    def show_again() -> None:
        _state["holding"] = False
        shell.events.unregister("post_execute", show_again)
        held.__exit__(None, None, None)

    sys.stdout.flush()
    held.__enter__()
    _state["holding"] = True
    shell.events.register("post_execute", show_again)
