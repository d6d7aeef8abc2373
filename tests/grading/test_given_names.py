"""What is given has a name of its own in each exercise, so no cell that runs in between changes another's answer."""

from __future__ import annotations

import ast
import builtins
import re
from functools import cache

import pytest
from test_sheets import SHEETS

from tests.grading.conftest import EXERCISES, MODULES
from tools.exercise_text import read_master


def tree_of(text):
    return ast.parse(re.sub(r"^\s*%.*$", "", text, flags=re.MULTILINE))


def bound(text):
    """Names that a cell gives something to, wherever in it."""
    found = set()
    for node in ast.walk(tree_of(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
    return found


def read(text):
    """Names that a cell takes from outside: it has not bound them itself."""
    names = {node.id for node in ast.walk(tree_of(text)) if isinstance(node, ast.Name)}
    return names - bound(text) - set(dir(builtins))


@cache
def code_of(module):
    """The code cells of a master."""
    master = read_master(EXERCISES / "src" / f"{module}.py")
    return {cell.id: cell.source for cell in master.cells if cell.cell_type == "code"}


@pytest.mark.parametrize("module", sorted({MODULES[key[:2]] for key in SHEETS}))
def test_no_two_exercises_of_a_notebook_bind_one_given_name(module):
    cells = code_of(module)
    for key in (key for key in SHEETS if MODULES[key[:2]] == module):
        own = f"{key.replace('.', '-')}-given"
        (record,) = (name for name in bound(cells[own]) if f"{name} = given(" in cells[own])
        others = [name for name, text in cells.items() if name != own and record in bound(text)]
        assert not others, f"{record} of {key} is bound in {others} too"


@pytest.mark.parametrize("key", SHEETS)
def test_an_answer_reads_no_name_that_another_exercise_s_cell_binds(key):
    cells = code_of(MODULES[key[:2]])
    mine = key.replace(".", "-")
    for name, text in cells.items():
        if name not in ("setup", mine, f"{mine}-given"):
            shared = read(cells[mine]) & bound(text)
            assert not shared, f"{key} reads {shared}, which cell {name} binds"
