"""What a run leaves in a notebook: what of it is kept, what it must not tell, and when it says nothing new."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path
from typing import Any

import nbformat

from tools.paths import ROOT

WIDGET = "application/vnd.jupyter.widget-view+json"
SANITISE = ROOT / "tests/notebooks/sanitize.cfg"  # nbval's own: what it replaces before it compares


def store(notebook: Any, target: Path) -> None:
    """Write a notebook, unless the one that is there says the same but for addresses and numbers of processes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        there = nbformat.read(target, as_version=4)
        tidy(there)
        if lasting(there) == lasting(notebook):
            return
    nbformat.write(notebook, target)


def lasting(notebook: Any) -> str:
    """Return a notebook's text with what nbval would not compare replaced."""
    rules = configparser.RawConfigParser()
    rules.read(SANITISE)
    text = nbformat.writes(notebook)
    for name in rules.sections():
        text = re.sub(rules[name]["regex"], rules[name]["replace"], text)
    return text


def tidy(notebook: Any) -> None:
    """Drop what differs from run to run and what only a live kernel can show.

    A widget's view needs its kernel; where the output also holds a picture, that is what a reader sees. A stream comes
    in as many pieces as the kernel happened to send it in.
    """
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if any(kind.startswith("image/") or kind == "text/html" for kind in data):
                data.pop(WIDGET, None)
            output.get("metadata", {}).pop(WIDGET, None)


def joined(outputs: list[Any]) -> list[Any]:
    """Return the outputs with neighbouring pieces of one stream put together."""
    found: list[Any] = []
    for output in outputs:
        if found and output.get("output_type") == "stream" and found[-1].get("name") == output["name"]:
            found[-1] = nbformat.from_dict({**found[-1], "text": found[-1]["text"] + output["text"]})
        else:
            found.append(output)
    return found


def machine_paths(notebook: Any) -> list[str]:
    """Return a line for each output that tells where this machine keeps its files."""
    private = "|".join(re.escape(str(path)) for path in (ROOT, Path.home(), sys.prefix))
    pattern = re.compile(rf"(?:{private}|/tmp/|/home/\w|/Users/\w)[^\s'\"]*")
    found = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            hit = pattern.search(text_of(output))
            if hit:
                found.append(f"  cell {number}: {hit.group()}")
    return found


def text_of(output: Any) -> str:
    """Return all text that an output holds; pictures in base64 are left out."""
    parts = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
    for kind, value in output.get("data", {}).items():
        if kind not in ("image/png", "image/jpeg"):
            parts.append(value if isinstance(value, str) else repr(value))
    return "\n".join(parts)
