"""A question in a notebook: without a guess its cell shows nothing more, and "Run all" goes on."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from tools.paths import quiet_kernels

WITHOUT = """
from course_lib.checks import predict
from IPython.display import display
predict("how many?", guess=None, answer=42, think="what comes in")
print("the table that answers it")
display("the figure that answers it")
predict("and twice?", guess=None, answer=84)
"the last value"
"""
PUBLISHED = """
import os
from IPython.display import Markdown
os.environ["COURSE_LIB_PUBLISHED"] = "1"
""" + WITHOUT.replace('"the last value"', 'display("a <figure>", Markdown("shown code"))\n"the last value"')
AFTER = "print('after it'); 1 + 1"
ERROR = "predict('?', guess=None, answer=1)\n1 / 0"
CELLS = (WITHOUT, AFTER, WITHOUT.replace("guess=None", "guess=42"), ERROR, PUBLISHED)


@pytest.fixture(scope="module")
def cells():
    """The cells, run in one learner's kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    environment = {name: value for name, value in quiet_kernels().items() if name != "COURSE_LIB_PUBLISHED"}
    NotebookClient(notebook, kernel_name="python3", allow_errors=True).execute(env=environment)
    return notebook.cells


@pytest.fixture(scope="module")
def outputs(cells):
    """What each of the cells shows."""
    return [shown(cell) for cell in cells]


def shown(cell):
    """What a cell shows, as one text."""
    return "".join(
        output.get("text") or output.get("ename") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
    )


def test_without_a_guess_a_cell_asks_and_shows_nothing_more(outputs):
    assert outputs[0].splitlines() == [
        "Predict: how many?",
        "  think about what comes in",
        "  put your number in place of None and run this cell again; the answer waits for it, "
        "and so does what else the cell shows",
    ]


def test_the_cells_after_it_run_and_show_everything(outputs):
    assert outputs[1] == "after it\n2"


def test_with_a_guess_everything_is_shown(outputs):
    for text in (
        "10 of 10 points: right",
        "the table that answers it",
        "the figure",
        "5 of 10 points",
        "the last value",
    ):
        assert text in outputs[2]


def test_an_error_is_never_held_back(outputs):
    assert "ZeroDivisionError" in outputs[3]


def test_the_published_copy_shows_the_answers(outputs):
    for text in ("think about what comes in", "the answer  42", "the table", "the answer  84", "the last value"):
        assert text in outputs[4]
    assert "points" not in outputs[4]


def test_the_published_copy_folds_them_where_html_is_shown(cells):
    question, answer = cells[4].outputs
    assert "how many?" in question["text"] and "42" not in question["text"]
    html = answer["data"]["text/html"]
    assert html.startswith("<details><summary>After your guess: the answer</summary>\n<pre><code>  the answer  42\n")
    assert html.endswith("the last value&#x27;</code></pre>\n</details>") and "a &lt;figure&gt;" in html
    assert answer["data"]["text/markdown"] == "shown code"  # by which a test finds what a lesson shows
