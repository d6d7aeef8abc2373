"""Limits that keep the code readable: length of files and functions."""

from __future__ import annotations

import ast

import pytest

from tools.paths import ROOT

LONGEST_FILE = 350
LONGEST_FUNCTION = 45
FOLDERS = ("course_lib", "tools", "slides", "tests", "wild")


def files(folder):
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in path.parts]


def functions(folder):
    """(place, lines) of every function, without its decorators and its docstring: explaining more costs nothing."""
    for path in files(folder):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                said = node.body[0] if ast.get_docstring(node) else None
                told = said.end_lineno - said.lineno + 1 if said else 0
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1 - told


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_are_short(folder):
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files(folder)}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_functions_are_short(folder):
    assert {place: lines for place, lines in functions(folder) if lines > LONGEST_FUNCTION} == {}
