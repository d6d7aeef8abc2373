"""An explorer as HTML: its controls, its first picture and its table stand in the page before any script has run."""

from __future__ import annotations

from html import escape

from course_lib.viz.pages.catalog import PANELS
from course_lib.viz.pages.front import Front
from course_lib.viz.widgets.controls import Control
from tools.site.places import PYTHON

_FIELDS = {"whole number": 'type="number" step="1"', "number": 'type="number" step="any"', "line": 'type="text"'}


def explorer(name: str, title: str, up: str) -> str:
    """The element of one panel; `up` leads from its page to the site's root. Markdown lets it pass as one block."""
    front = Front(PANELS[name]())
    state, controls = front.state(), front.panel.controls
    presets = "".join(f'<button type="button">{escape(one)}</button>' for one in front.panel.presets)
    fields = "".join(_field(f"{name}-{key}", key, one, key in state["off"]) for key, one in controls.items())
    words = escape(state["text"]).replace("\n", "&#10;")
    lines = [
        f'<section class="explorer" data-panel="{name}" data-python="{up}{PYTHON}/" aria-label="{escape(title)}">',
        f'<form><div class="presets" role="group" aria-label="Examples">{presets}</div>',
        f'<div class="controls">{fields}</div></form>',
        '<p class="status" role="status"></p><p class="refused" role="alert" hidden></p>',
        f'<figure tabindex="0" role="group" aria-label="Picture">{state["picture"]}</figure>'.replace("\n", " "),
        '<p class="said" aria-live="polite"></p>',
        f'<details><summary>In words</summary><pre tabindex="0">{words}</pre></details>',
        *([f"<details><summary>As a table</summary>{table(state['table'])}</details>"] if state["table"] else []),
        "<noscript><p>The controls need JavaScript. The picture is the first one.</p></noscript>",
        f'<script type="module" src="{up}_static/explorer.js"></script></section>',
    ]
    return "\n".join(lines)


def _field(place: str, name: str, control: Control, off: bool) -> str:
    """One control with its label, as it stands at first."""
    told = f'name="{name}" id="{place}"{" disabled" if off else ""}'
    if control.kind == "slider":
        element = _slider(control, told)
    elif control.kind == "choice":
        element = _choice(control, told)
    elif control.kind == "lines":
        element = f'<textarea rows="4" spellcheck="false" {told}></textarea>'
    else:
        element = f'<input {_FIELDS[control.kind]} value="{escape(str(control.value))}" {told}>'
    label = f'<label for="{place}">{escape(control.label)}</label>'
    return f'<div class="control {control.kind.replace(" ", "-")}">{label}{element}</div>'


def _slider(control: Control, told: str) -> str:
    """Through the places of its options; what they stand for, and what is said of them, goes along."""
    keys, words = [str(value) for _, value in control.options], [shown for shown, _ in control.options]
    at = keys.index(str(control.value))
    ends = f'min="0" max="{len(keys) - 1}" step="1" value="{at}" aria-valuetext="{words[at]}"'
    lists = f'data-keys="{"|".join(keys)}" data-words="{"|".join(words)}"'
    return f'<output>{words[at]}</output><input type="range" {ends} {lists} {told}>'


def _choice(control: Control, told: str) -> str:
    chosen = {value: " selected" if value == control.value else "" for _, value in control.options}
    options = [
        f'<option value="{escape(str(value))}"{chosen[value]}>{escape(shown)}</option>'
        for shown, value in control.options
    ]
    return f"<select {told}>{''.join(options)}</select>"


def table(rows: list[list[str]]) -> str:
    """Rows and columns with heads, for those who hear them too."""
    head, *body = rows
    heads = "".join(f'<th scope="col">{escape(words)}</th>' for words in head[1:])
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(words)}</td>" for words in cells)}</tr>'
        for name, *cells in body
    )
    inside = f"<table><thead><tr><td></td>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{inside}</div>'
