"""Explorers on pages, and what a browser's Python needs to draw them."""

from __future__ import annotations

import json
import shutil

from course_lib.viz.ink.letters import FILES, FOLDER
from tools.site.bundle import write_bundle
from tools.site.elements import explorer
from tools.site.places import NODE, PYTHON, SOURCES

PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
TEXTS = {  # the title of a page, and what stands above its controls
    "memory": (
        "What fills a GPU?",
        "Choose a model, a GPU and how the training is spread. Each part of the bar is a formula of the course.",
    ),
    "what_fits": (
        "What fits on your GPUs?",
        "Choose a published model, or paste the text of your own model's `config.json`: it stays in this page.",
    ),
    "zero": (
        "What does each stage of ZeRO leave on a rank?",
        "Weights, gradients and the optimizer's states, when backward is through. The line is one H100.",
    ),
    "schedule": (
        "Who computes when in a pipeline?",
        "F is a micro-batch's forward, B its gradient for the stage before, W the gradients of the weights.",
    ),
    "ring": (
        "How do ranks in a ring agree on a sum?",
        "In each step every rank sends one chunk to its right neighbour. On the right is what each rank holds.",
    ),
}


def write_explorers() -> None:
    """Write a page for each panel, the Python that draws them, and its letters."""
    target = SOURCES / "_extra" / PYTHON
    target.mkdir(parents=True)
    for name in PYODIDE:
        shutil.copy(NODE / "pyodide" / name, target / name)
    lock = json.loads((NODE / "pyodide/pyodide-lock.json").read_text())
    (target / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": {}}))  # this Python takes none
    for name in FILES.values():
        shutil.copy(FOLDER / name, target / name)
    write_bundle(target / "course.zip")
    for name, (title, says) in TEXTS.items():
        text = f"# {title}\n\n{says}\n\n{explorer(name, title, '../')}\n"
        page = SOURCES / f"explorers/{name}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
