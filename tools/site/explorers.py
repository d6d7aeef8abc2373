"""Explorers on pages: first picture and controls as HTML, and what a browser's Python needs to draw the next one."""

from __future__ import annotations

import json
import shutil
from html import escape

from course_lib.viz.ink.letters import FILES, FOLDER
from course_lib.viz.pages.catalog import PANELS
from course_lib.viz.pages.front import Front
from course_lib.viz.widgets.controls import Control
from tools.site.bundle import write_bundle
from tools.site.places import NODE, SOURCES

PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
PLACE = "python"  # of all that follows, below the site's root
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
_FIELDS = {"whole number": 'type="number" step="1"', "number": 'type="number" step="any"', "line": 'type="text"'}


def write_explorers() -> list[str]:
    """Write a page for each panel, the Python that draws them, and its letters; return the pages' names."""
    target = SOURCES / "_extra" / PLACE
    target.mkdir(parents=True)
    for name in PYODIDE:
        shutil.copy(NODE / "pyodide" / name, target / name)
    lock = json.loads((NODE / "pyodide/pyodide-lock.json").read_text())
    (target / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": {}}))  # this Python takes none
    for name in FILES.values():
        shutil.copy(FOLDER / name, target / name)
    write_bundle(target / "course.zip")
    for name, (title, says) in TEXTS.items():
        text = f"# {title}\n\n{says}\n\n{explorer(name, '../')}\n"
        page = SOURCES / f"explorers/{name}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
    return [f"explorers/{name}" for name in TEXTS]


def explorer(name: str, up: str) -> str:
    """The element of one panel, as Markdown lets it pass: no empty lines outside of what is preformatted."""
    front = Front(PANELS[name]())
    state, controls = front.state(), front.panel.controls
    presets = "".join(f'<button type="button">{escape(one)}</button>' for one in front.panel.presets)
    fields = "".join(field(name, key, one, key in state["off"]) for key, one in controls.items())
    shown = f'<figure tabindex="0" role="group" aria-label="Picture">{state["picture"]}</figure>'
    return "\n".join(
        [
            f'<section class="explorer" data-panel="{name}" data-python="{up}{PLACE}/" aria-label="{TEXTS[name][0]}">',
            f'<form><div class="presets" role="group" aria-label="Examples">{presets}</div>',
            f'<div class="controls">{fields}</div></form>',
            '<p class="status" role="status"></p><p class="refused" role="alert" hidden></p>',
            shown.replace("\n", " "),
            '<p class="said" aria-live="polite"></p>',
            f'<details><summary>In words</summary><pre tabindex="0">{_unbroken(escape(state["text"]))}</pre></details>',
            table(state["table"]) if state["table"] else "",
            "<noscript><p>The controls need JavaScript. The picture is the first one.</p></noscript>",
            f'<script type="module" src="{up}_static/explorer.js"></script></section>',
        ]
    ).replace("\n\n", "\n")


def field(panel: str, name: str, control: Control, off: bool) -> str:
    """One control with its label, in the values that it has at first."""
    told = f'name="{name}" id="{panel}-{name}"{" disabled" if off else ""}'
    label = f'<label for="{panel}-{name}">{escape(control.label)}</label>'
    keys = [str(value) for _, value in control.options]
    if control.kind == "slider":
        at = keys.index(str(control.value))
        words = [shown for shown, _ in control.options]
        ends = f'min="0" max="{len(keys) - 1}" step="1" value="{at}" aria-valuetext="{words[at]}"'
        lists = f'data-keys="{"|".join(keys)}" data-words="{"|".join(words)}"'
        element = f'<output>{words[at]}</output><input type="range" {ends} {lists} {told}>'
    elif control.kind == "choice":
        options = "".join(
            f'<option value="{escape(key)}"{" selected" if key == str(control.value) else ""}>{escape(shown)}</option>'
            for key, (shown, _) in zip(keys, control.options, strict=True)
        )
        element = f"<select {told}>{options}</select>"
    elif control.kind == "lines":
        element = f'<textarea rows="4" spellcheck="false" {told}></textarea>'
    else:
        element = f'<input {_FIELDS[control.kind]} value="{escape(str(control.value))}" {told}>'
    return f'<div class="control {control.kind.replace(" ", "-")}">{label}{element}</div>'


def table(rows: list[list[str]]) -> str:
    """The same numbers whole: rows and columns with heads, for those who hear them too."""
    head, *body = rows
    heads = "".join(f'<th scope="col">{escape(words)}</th>' for words in head[1:])
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(words)}</td>" for words in cells)}</tr>'
        for name, *cells in body
    )
    caption = "<caption>The same, whole</caption>"
    inside = f"<table>{caption}<thead><tr><td></td>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{inside}</div>'
    return f"<details><summary>In whole numbers</summary>{scroll}</details>"


def _unbroken(text: str) -> str:
    """Lines that Markdown takes for one block."""
    return text.replace("\n", "&#10;")
