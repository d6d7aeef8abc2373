"""nbgrader's page for a student, as a page that runs nothing: whatever a submission has put out is text and pictures.

An instructor opens these pages on their own machine, and hands them on to students.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import nbformat
from bleach import clean
from nbconvert.exporters import HTMLExporter
from nbconvert.filters import markdown2html
from nbgrader.converters import GenerateFeedback
from nbgrader.preprocessors import GetGrades

# A browser that keeps to this line runs no script and loads nothing, should the cleaning have missed a trick.
POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'\" />"
)
SHOWN = ("text/html", "text/markdown", "text/latex", "text/plain", "image/svg+xml", "image/png", "image/jpeg")
TAGS = frozenset(
    ["a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "details", "div", "dl", "dt", "em", "hr", "i", "img"]
    + ["h1", "h2", "h3", "h4", "h5", "h6", "kbd", "li", "ol", "p", "pre", "s", "small", "span", "strong", "sub", "sup"]
    + ["summary", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul"]
)
PICTURE = re.compile(r"data:image/(png|jpeg|gif|svg\+xml);base64,[A-Za-z0-9+/=\s]*")
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")


def feedback(notebook: Any, resources: dict[str, Any]) -> str:
    """The points of each cell, and the hidden tests."""
    exporter = HTMLExporter(config=GenerateFeedback().config, sanitize_html=True)
    exporter.register_preprocessor(GetGrades, enabled=True)
    # nbconvert's own option knows few tags, and nbgrader's template does not ask for it where it renders Markdown.
    exporter.register_filter("clean_html", harmless)
    exporter.register_filter("markdown2html", lambda text: harmless(markdown2html(text)))
    page = str(exporter.from_notebook_node(without_tricks(notebook), resources=resources)[0])
    before, start, rest = page.partition("<head>")
    head, end, body = rest.partition("</head>")
    head = re.sub(r"<script.*?</script>", "", head, flags=re.DOTALL)  # the template's own, for formulas
    return "".join([before, start, POLICY, head, end, body])


def without_tricks(notebook: Any) -> Any:
    """A copy that holds what can be shown: templates write other metadata into the page as it is."""
    shown = copy.deepcopy(notebook)
    shown.metadata = nbformat.from_dict({"language_info": {"name": "python"}})
    for cell in shown.cells:
        cell.metadata = nbformat.from_dict({name: cell.metadata[name] for name in cell.metadata if name == "nbgrader"})
        for output in cell.get("outputs", []):
            if "data" in output:
                output.metadata = nbformat.from_dict({})
                kept = {kind: text for kind, text in output.data.items() if is_shown(kind, text)}
                output.data = nbformat.from_dict(kept or {"text/plain": f"not shown: {', '.join(output.data)}"})
    return shown


def is_shown(kind: str, content: Any) -> bool:
    if kind not in SHOWN or not isinstance(content, str):
        return False
    return kind not in ("image/png", "image/jpeg") or bool(BASE64.fullmatch(content))


def harmless(html: str | bytes) -> str:
    """HTML with nothing that acts: other tags, handlers, styles and addresses are left out."""
    text = html.decode() if isinstance(html, bytes) else str(html)
    protocols = ("http", "https", "mailto", "data")
    return str(clean(text, tags=TAGS, attributes=is_allowed, protocols=protocols, strip=True))


def is_allowed(tag: str, name: str, value: str) -> bool:
    """Whether an attribute may stay."""
    if name == "src":
        return tag == "img" and bool(PICTURE.fullmatch(value))
    if name == "href":
        return tag == "a" and not re.sub(r"[\0-\x20]+", "", value).lower().startswith("data:")
    return name in ("class", "id", "title", "alt", "align", "border", "colspan", "rowspan", "open")
