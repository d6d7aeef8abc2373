"""How a submission's cells are executed: what the round trip does not reach."""

from __future__ import annotations

import nbformat
import pytest

from tools.grading import execute
from tools.paths import quiet_kernels

SILENCED = "get_ipython().showtraceback = lambda *args, **options: None\n1 / 0"


@pytest.fixture
def outputs_of(tmp_path, monkeypatch):
    for name, value in quiet_kernels(tmp_path).items():
        monkeypatch.setenv(name, value)

    def run(*sources, seconds=60):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        notebook.cells.insert(0, nbformat.v4.new_markdown_cell("# Title"))
        execute.SurvivingClient(notebook, 300, lambda index, outputs: None).run(seconds, {})
        return [[output.get("ename", output.get("text")) for output in cell.outputs] for cell in notebook.cells[1:]]

    return run


def test_an_error_that_the_code_has_silenced_is_one(outputs_of):
    assert outputs_of("x = 1", SILENCED, "print(x)") == [[], ["ZeroDivisionError"], ["1\n"]]


def test_cells_after_the_notebook_s_time_are_not_run(outputs_of):
    assert outputs_of("print(1)", "print(2)", seconds=-1) == [["SubmissionTimeout"], ["SubmissionTimeout"]]


@pytest.mark.timeout(200)  # less than a cell may take: the flood is not waited out
def test_a_cell_that_prints_for_ever_ends_long_before_its_time_and_alone(outputs_of):
    flood = "y = 2\nwhile True:\n    print('x' * 10**6)"
    before, during, after = outputs_of("x = 1", flood, "print(x, 'y' in globals())")
    assert (before, during[-1], after) == ([], "TooMuchOutput", ["1 False\n"])
    assert sum(map(len, during)) < 2 * execute.PRINTED
