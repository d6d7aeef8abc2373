"""Holds back or folds away what a cell would still show, so that a figure does not answer the question above it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape

from IPython.core.getipython import get_ipython
from IPython.display import display
from IPython.utils.capture import CapturedIO, capture_output

_state = {"holding": False}
_SUMMARY = "After your guess: the answer"


def rest_of_cell() -> None:
    """Show nothing more of the notebook cell that runs: no text, no figure, no value of its last line.

    The cell itself runs to its end, warnings and errors are still shown, and the next cell shows everything again.
    Outside of a notebook nothing is held back.
    """
    _hold(lambda held: None)


def fold_rest_of_cell() -> None:
    """Fold all that the notebook cell still shows into one output that a reader opens, on GitHub and elsewhere too."""
    _hold(_show_folded)


def _hold(end: Callable[[CapturedIO], None]) -> None:
    """Take what the cell shows from now on, and give it to `end` when the cell has run."""
    shell = get_ipython()
    if shell is None or _state["holding"]:
        return
    capture = capture_output(stderr=False)

    def show_again() -> None:
        _state["holding"] = False
        shell.events.unregister("post_execute", show_again)
        capture.__exit__(None, None, None)
        end(held)

    sys.stdout.flush()
    held = capture.__enter__()
    _state["holding"] = True
    shell.events.register("post_execute", show_again)


def _show_folded(held: CapturedIO) -> None:
    """One output of all texts and pictures; what can be neither, such as shown code, stays beside it."""
    shown = [output for output in held.outputs if not {"text/html", "text/plain"}.isdisjoint(output.data)]
    beside = [output for output in held.outputs if "text/markdown" in output.data]
    inside = [output for output in shown if output not in beside]
    html = [output.data.get("text/html") or _as_typed(output.data["text/plain"]) for output in inside]
    plain = [held.stdout.rstrip("\n"), *(output.data.get("text/plain", "") for output in inside)]
    folded = "\n".join([f"<details><summary>{_SUMMARY}</summary>", _as_typed(held.stdout), *html, "</details>"])
    display({"text/html": folded, "text/plain": "\n".join(plain)}, raw=True)
    for output in beside:
        display(output.data, raw=True)


def _as_typed(text: str) -> str:
    return f"<pre><code>{escape(text.rstrip())}</code></pre>" if text.strip() else ""
