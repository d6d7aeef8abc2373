"""The first exercise of a notebook leaves everything that can be left; all other solutions keep all their points."""

from __future__ import annotations

import re

import pytest
from nbclient import NotebookClient

from tests.grading import poisons
from tools.exercise_text import solution_copy
from tools.grading.execute import SurvivingClient
from tools.paths import ROOT, quiet_kernels

pytestmark = pytest.mark.timeout(300)
MASTER = ROOT / "exercises" / "src" / "05_tensor_parallelism.py"
SOLVED = re.findall(r"(?m)^# ## (\d\d\.\d+)$", MASTER.read_text())
FIRST = "05-2"  # the first whose answer runs on ranks
UNMENDED = ("an alarm", "a function of Python")  # in a notebook's own process: they end or stop the kernel's own loop
IN_THE_KERNEL = "\n".join(done for kind, (done, _) in poisons.BOTH.items() if kind not in UNMENDED)


@pytest.fixture
def poisoned(tmp_path, monkeypatch):
    """Solved; the answer to the first exercise leaves everything on its ranks, its cell everything in the kernel."""
    for name, value in quiet_kernels(tmp_path).items():
        monkeypatch.setenv(name, value)
    notebook = solution_copy(MASTER)
    cell = next(cell for cell in notebook.cells if cell.id == FIRST)
    on_ranks = f"    exec({poisons.IMPORTS + poisons.EVERYTHING!r}, {{}})\n"
    with_poison = re.sub(r"(?m)^(?=    return )", lambda _: on_ranks, cell.source)
    assert with_poison != cell.source
    cell.source = f"exec({poisons.IMPORTS + IN_THE_KERNEL!r}, {{}})\n{with_poison}"
    return notebook


def errors_of(cell_id, notebook):
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    return [output for output in cell.outputs if output.output_type == "error"]


def printed(notebook):
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


def test_in_a_notebook(poisoned):
    NotebookClient(poisoned, timeout=120, kernel_name="python3", allow_errors=True).execute()
    assert not errors_of(FIRST, poisoned)
    said = printed(poisoned)
    assert len(SOLVED) >= 12
    for exercise in SOLVED:
        if exercise.replace(".", "-") != FIRST:
            assert re.search(rf"^{exercise} .*: passed, (\d+) of \1 points$", said, re.MULTILINE), said


def test_in_make_grade(poisoned, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    SurvivingClient(poisoned, 60, lambda index, outputs: None).run(600.0, {})
    assert not errors_of(FIRST, poisoned)
    for cell in poisoned.cells:
        if cell.metadata.get("nbgrader", {}).get("grade") and not cell.id.startswith(FIRST):
            assert re.search(r": passed, (\d+) of \1 points", "".join(x.get("text", "") for x in cell.outputs)), cell
