"""Code of the library that a lesson shows is what the library says today, to the last comment."""

from __future__ import annotations

import ast
import re
from textwrap import dedent

import nbformat
import pytest

from tools.paths import ROOT

SHOWN = re.compile(r"`(course_lib/[\w/]+\.py)`\n\n```python\n(.*)\n```", re.DOTALL)  # as viz.show_source writes it


def shown():
    """(lesson, file, code) of each piece that a built lesson shows."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                hit = SHOWN.fullmatch(output.get("data", {}).get("text/markdown", ""))
                if hit:
                    yield path.stem, hit[1], hit[2]


def definitions(text):
    """The code of each function and class of a file, as `inspect.getsource` cuts it."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            yield dedent("\n".join(lines[first - 1 : node.end_lineno])).rstrip()


SHOWN_PIECES = list(shown())


@pytest.mark.parametrize(("lesson", "file", "code"), SHOWN_PIECES, ids=[f"{name}-{at}" for name, at, _ in SHOWN_PIECES])
def test_a_lesson_shows_the_file_as_it_is(lesson, file, code):
    assert code in definitions((ROOT / file).read_text()), f"{lesson} shows another {file}; run make notebooks"


def test_lessons_show_code():
    assert len({lesson for lesson, _, _ in SHOWN_PIECES}) >= 2


def test_a_comment_more_is_another_code():
    told = list(definitions("@mark\ndef f():\n    return 1\n\nclass A:\n    def g(self): # why\n        pass\n"))
    assert told[:2] == ["@mark\ndef f():\n    return 1", "class A:\n    def g(self): # why\n        pass"]
    assert told[2] == "def g(self): # why\n    pass"
