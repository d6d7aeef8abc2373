"""The page for a student shows what a submission has put out and runs none of it."""

from __future__ import annotations

import base64
import os
import re
from html.parser import HTMLParser
from unittest.mock import patch

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from tests.grading.test_nbgrader_roundtrip import small_module
from tools.exercise_text import solution_copy
from tools.grading.assignment import make_assignment, points_of
from tools.paths import quiet_kernels

SCRIPT = "<script>alert(1)</script>"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(1)</script></svg>'
HTML = [
    SCRIPT,
    '<img src=x onerror="alert(1)">',
    '<img src="https://tracker.example/1.png">',
    '<a href="javascript:alert(1)">x</a>',
    '<a href="java&#x0A;script:alert(1)">x</a>',
    '<a href=" data:text/html,<script>alert(1)</script>">x</a>',
    '<iframe src="data:text/html,x"></iframe><object data="x.swf"></object><embed src="x">',
    '<form action="https://evil.example"><button formaction="javascript:alert(1)">x</button></form>',
    "<math><mtext></form><mglyph><style></math><img src onerror=alert(1)>",
    '<p style="background:url(javascript:alert(1))" onclick="alert(1)">x</p>',
    '<meta http-equiv="refresh" content="0;url=https://evil.example"><base href="https://evil.example">',
    SVG,
]
MARKDOWN = ["[x](javascript:alert(1))", "![x](javascript:alert(1))", "<javascript:alert(1)>", "`x`" + SCRIPT, *HTML]
KINDS = {
    "application/javascript": "alert(1)",
    "text/vnd.mermaid": "graph TD; A[<script>alert(1)</script>]",
    "application/vnd.jupyter.widget-view+json": {"model_id": SCRIPT},
    "text/latex": f"$${SCRIPT}$$",
    "image/svg+xml": SVG,
    "image/png": f'"><script>alert(1)</script>{base64.b64encode(b"x").decode()}',
    "text/plain": SCRIPT,
}


class Acting(HTMLParser):
    """Collects what a browser would run, load or send."""

    def __init__(self):
        super().__init__()
        self.found, self.policy = [], ""

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "iframe", "object", "embed", "form", "button", "base", "link", "svg", "math"):
            self.found.append(tag)
        for name, value in attributes:
            address = re.sub(r"[\0- ]", "", value or "").lower()
            if name.startswith("on") or name in ("srcdoc", "formaction", "action", "style"):
                self.found.append((tag, name, value))
            scheme = re.match("[a-z][a-z0-9+.-]*:", address)
            if name in ("src", "href") and scheme and scheme[0] not in ("data:", "http:", "https:", "mailto:"):
                self.found.append((tag, name, value))
            if name == "href" and address.startswith("data:"):
                self.found.append((tag, name, value))
            if name == "src" and not address.startswith("data:image/"):
                self.found.append((tag, name, value))
        if tag == "meta" and dict(attributes).get("http-equiv", "").lower() == "content-security-policy":
            self.policy = dict(attributes)["content"]
        elif tag == "meta" and "http-equiv" in dict(attributes):
            self.found.append(tag)

    handle_startendtag = handle_starttag


@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    assignment = make_assignment(small_module(tmp_path_factory.mktemp("src")), 0)
    solved = solution_copy(small_module(tmp_path_factory.mktemp("solved")))

    def make(*cells, outputs=()):
        """The page of a solved notebook with more cells; the last of them has these outputs."""
        more = [nbformat.from_dict(cell) for cell in cells]
        notebook = nbformat.from_dict({**solved, "cells": [*solved.cells, *more]})

        def run(executed):
            executed.cells[-1].outputs = [nbformat.from_dict(output) for output in outputs]
            executed.cells[-1].metadata.update({"magics_language": SCRIPT, "alt": '"><script>alert(1)</script>'})

        with patch.dict(os.environ, quiet_kernels(tmp_path_factory.mktemp("home"))):
            points, _, page = points_of(assignment, notebook, run, page=True)
        assert sum(points.values()) == 26 and "Score: 26.0 / 26.0" in page
        return page

    return make


def acts(page):
    parser = Acting()
    parser.feed(page)
    assert parser.policy.startswith("default-src 'none'; ") and "script-src" not in parser.policy
    return parser.found


def test_markdown_and_code_of_a_student_do_not_act(page_of):
    page = page_of(*map(new_markdown_cell, MARKDOWN), new_code_cell(SCRIPT), new_markdown_cell("# Title *here*\n\n- a"))
    assert acts(page) == []
    assert "<h1" in page and "<em>here</em>" in page and "<li>a</li>" in page


@pytest.mark.parametrize("kind", ["text/html", "text/markdown"])
def test_html_that_a_cell_puts_out_does_not_act(page_of, kind):
    outputs = [new_output("display_data", {kind: text}, metadata={kind: {"isolated": True}}) for text in MARKDOWN]
    outputs.append(new_output("display_data", {kind: "<table><tr><td>seven</td></tr></table>"}))
    page = page_of(new_code_cell("1"), outputs=outputs)
    assert acts(page) == [] and "<td>seven</td>" in page


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_kind_of_output_acts(page_of, kind):
    handler = {"width": "1 onload=alert(1)", "alt": '" onload="alert(1)'}
    data = new_output("display_data", {kind: KINDS[kind]}, metadata={kind: handler, **handler})
    result = new_output("execute_result", {kind: KINDS[kind]}, metadata={kind: handler})
    assert acts(page_of(new_code_cell("1"), outputs=[data, result])) == []


def test_streams_and_errors_are_text_and_pictures_stay(page_of):
    picture = base64.b64encode(b"\x89PNG").decode()
    outputs = [
        new_output("stream", text=SCRIPT),
        new_output("error", ename=SCRIPT, evalue=SCRIPT, traceback=[SCRIPT, f"\x1b[31m{SCRIPT}\x1b[0m"]),
        new_output("display_data", {"image/png": picture}),
        new_output("display_data", {"image/svg+xml": SVG}),
    ]
    page = page_of(new_code_cell("1"), outputs=outputs)
    assert acts(page) == [] and page.count("&lt;script&gt;") >= 3
    assert f"data:image/png;base64,{picture}" in page and "data:image/svg+xml;base64," in page
