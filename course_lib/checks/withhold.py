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
    """One output of all texts, pictures and shown code, which stands in it as Markdown too."""
    outputs = [output.data for output in held.outputs]
    html = [data.get("text/html") or _as_typed(data.get("text/plain", "")) for data in outputs]
    plain = [held.stdout.rstrip("\n"), *(data.get("text/plain", "") for data in outputs)]
    folded = "\n".join([f"<details><summary>{_SUMMARY}</summary>", _as_typed(held.stdout), *html, "</details>"])
    code = "\n\n".join(data["text/markdown"] for data in outputs if "text/markdown" in data)
    display({"text/html": folded, "text/plain": "\n".join(plain)} | ({"text/markdown": code} if code else {}), raw=True)


def _as_typed(text: str) -> str:
    return f"<pre><code>{escape(text.rstrip())}</code></pre>" if text.strip() else ""
