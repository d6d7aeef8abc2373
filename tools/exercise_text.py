"""A master of exercises, and the learner's copy and the solutions that are made from it.

The markup is nbgrader's own. What differs is the stub: it names the exercise, and numbers stay as `name = None`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat

from tools.build_notebooks import METADATA
from tools.exercise_facts import completed

SOLUTION = re.compile(
    r"^(?P<indent>[ ]*)### BEGIN SOLUTION\n(?P<body>.*?)^[ ]*### END SOLUTION$", re.DOTALL | re.MULTILINE
)
HIDDEN = re.compile(r"^### BEGIN HIDDEN TESTS\n.*?^### END HIDDEN TESTS\n?", re.DOTALL | re.MULTILINE)
MARKS = re.compile(r"^[ ]*### (BEGIN|END) (SOLUTION|HIDDEN TESTS)\n", re.MULTILINE)
COMPUTED = re.compile(r" ?<!-- =.*?-->", re.DOTALL)  # how a number was computed: for the check of the master alone
SETUP = "setup"  # the grade id of the first code cell
SEED = re.compile(r"^GRADE_SEED = (?P<seed>\d+)", re.MULTILINE)


def read_master(source: Path, seed: int = 0) -> Any:
    """Read a master as a notebook, completed: nbgrader's metadata kept, ids from grade ids or places, tests folded."""
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.cells = completed(notebook.cells)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        mark = cell.metadata.get("nbgrader", {})
        cell.metadata = nbformat.from_dict({"nbgrader": mark} if mark else {})
        cell.id = mark.get("grade_id", f"cell-{number:02}")
        cell.source = COMPUTED.sub("", SEED.sub(f"GRADE_SEED = {seed}", cell.source))
        if mark.get("grade"):
            # Run All goes on after an unsolved exercise; the learner's own check is the cell above.
            cell.metadata.update({"jupyter": {"source_hidden": True}, "tags": ["raises-exception"]})
    return notebook


def learner_copy(source: Path, seed: int = 0) -> Any:
    """The master without solutions and hidden tests."""
    notebook = read_master(source, seed)
    for cell in notebook.cells:
        cell.source = without_answers(cell.source, cell.id)
    return notebook


def solution_copy(source: Path, seed: int = 0) -> Any:
    """The master with its solutions, to be executed; no cell is expected to raise. Answers and the setup are folded."""
    notebook = read_master(source, seed)
    for cell in notebook.cells:
        if cell.cell_type == "code" and (cell.id == SETUP or SOLUTION.search(cell.source)):
            cell.metadata["jupyter"] = {"source_hidden": True}
        cell.source = MARKS.sub("", cell.source + "\n").rstrip("\n")
        cell.metadata.pop("tags", None)
    return notebook


def without_answers(text: str, grade_id: str) -> str:
    """Replace solution regions by stubs and drop hidden tests."""
    return HIDDEN.sub("", without_solution(text, grade_id) + "\n").rstrip("\n")


def without_solution(text: str, grade_id: str) -> str:
    """Replace solution regions by stubs."""
    return SOLUTION.sub(lambda region: stub(region["body"], region["indent"], grade_id), text)


def stub(body: str, indent: str, grade_id: str) -> str:
    """What a learner finds in place of a solution: `name = None` for numbers, else a line that raises.

    >>> stub("steps = 2 * p\\n", "", "02-1"), stub("    return x\\n", "    ", "02-4")
    ('steps = None', '    raise NotImplementedError("Exercise 02.4: write your code in place of this line")')
    """
    nodes = [] if indent else ast.parse(body).body
    if nodes and all(isinstance(node, ast.Assign) for node in nodes):
        names = [ast.unparse(target) for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
        return "\n".join(f"{name} = None" for name in names)
    text = f"Exercise {exercise_of(grade_id)}: write your code in place of this line"
    return f'{indent}raise NotImplementedError("{text}")'


def exercise_of(grade_id: str) -> str:
    """The exercise that a grade id belongs to.

    >>> exercise_of("02-10-all-gather")
    '02.10'
    """
    return ".".join(grade_id.split("-")[:2])
