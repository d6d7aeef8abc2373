"""One cell of a notebook as one cell of a page: what is folded in JupyterLab is folded here, in the same words."""

from __future__ import annotations

from html import escape
from typing import Any

from nbformat.v4 import new_markdown_cell, new_output

from tools.site.pictures import with_files

SETUP, ANSWER = "Setup", "After your guess: the answer"  # as lessons call them
_WIDGET = "application/vnd.jupyter.widget-view+json"


def folded(summary: str, body: str) -> str:
    """Markdown in a fold that opens by mouse and keyboard, is found by the browser, and needs no script."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def code(text: str) -> str:
    """A block of Python as Markdown."""
    return f"````python\n{text}\n````"


def text_cell(text: str) -> Any:
    """A cell of Markdown; its name does not matter, so all have the same."""
    return new_markdown_cell(text, id="text")


def shown(cell: Any, up: str) -> list[Any]:
    """A code cell with its outputs as files and text; code that is hidden, or an answer, is in a fold."""
    hidden = cell.metadata.get("jupyter", {})
    cell.metadata = {}
    cell.outputs = [output for output in (_slim(output, up) for output in cell.outputs) if output]
    if hidden.get("outputs_hidden"):
        body = "\n".join(map(_as_html, cell.outputs))
        cell.outputs = [_html(f"<details><summary>{ANSWER}</summary>\n{body}\n</details>")]
    if not hidden.get("source_hidden"):
        return [cell]
    cell.metadata = {"tags": ["remove-input"]}
    first = cell.source.splitlines()[0]
    summary = SETUP if first.startswith(f"# {SETUP}") else "The code"
    return [text_cell(folded(summary, code(cell.source))), *([cell] if cell.outputs else [])]


def _slim(output: Any, up: str) -> Any:
    """Without what a page cannot show; None if nothing is left of it."""
    data = output.get("data")
    if data is None:
        return output
    data.pop(_WIDGET, None)
    if "text/html" in data:
        return _html(with_files(data["text/html"], up))
    return output if any(data.values()) else None


def _html(text: str) -> Any:
    return new_output("display_data", {"text/html": text})


def _as_html(output: Any) -> str:
    """An output inside a fold."""
    if output.output_type == "stream":
        return f"<pre>{escape(output.text)}</pre>"
    if output.output_type == "error":
        return f"<pre>{escape(chr(10).join(output.traceback))}</pre>"
    data = output.data
    return str(data["text/html"]) if "text/html" in data else f"<pre>{escape(data['text/plain'])}</pre>"
