"""What a submission has earned stays, whatever is done to its cells, and whatever they do to what runs them."""

from __future__ import annotations

import copy
import csv
import os
import tempfile
from functools import partial
from pathlib import Path
from unittest.mock import patch

import nbformat
import pytest

from tests.grading.test_nbgrader_roundtrip import MODULE, cell_of, small_module, solved_but
from tools.exercise_text import learner_copy, solution_copy
from tools.grading import __main__ as grading
from tools.grading import isolation, marking
from tools.grading.assignment import make_assignment
from tools.grading.restored import mark_of, restored, with_one_of_each

pytestmark = pytest.mark.timeout(300)
ALL = {"02.1": 8, "02.3": 5, "02.9": 4}


def with_answer(master, text, *, where="02-9"):
    """Solved, with more in the cell of an answer."""
    notebook = solution_copy(master)
    cell_of(notebook, where).source += "\n" + text
    return notebook


def shuffled(master):
    """Answers from the last to the first, everything graded in front of them, the set-up at the end."""
    notebook = solution_copy(master)
    graded = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    others = [cell for cell in notebook.cells if cell not in graded and mark_of(cell)]
    notebook.cells = [*graded, *reversed(others)]
    return notebook


def doubled(master):
    """Every cell twice, and at the end the answers' cells as they were handed out, which undo the answers."""
    notebook, before = solution_copy(master), learner_copy(master)
    twice = [copy.deepcopy(cell) for cell in notebook.cells for _ in range(2)]
    notebook.cells = [*twice, *(cell for cell in before.cells if cell.metadata.get("nbgrader", {}).get("solution"))]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"id-{number}"
    return notebook


def with_other_marks(master):
    """Metadata and types changed in every way, an import in the set-up on which an answer builds."""
    notebook = solution_copy(master)
    marks = {
        "02-1": {"grade_id": "02-1", "schema_version": 0},
        "02-1-given": [],
        "02-1-ring": {"grade_id": "02-1-ring", "points": 1e9, "grade": False, "schema_version": 99},
        "02-1-tree": None,
        "02-3-values": {"grade_id": "elsewhere", "locked": "no"},
        "02-3-edges": "text",
        "02-9": {"grade_id": 7},
    }
    for name, mark in marks.items():
        cell_of(notebook, name).metadata["nbgrader"] = mark
    cell_of(notebook, "setup").source += "\nimport math as needed"
    cell_of(notebook, "02-3").source += "\nneeded.pi"
    number = notebook.cells.index(cell_of(notebook, "02-9"))
    notebook.cells[number] = nbformat.v4.new_markdown_cell(
        notebook.cells[number].source, id="02-9", metadata=notebook.cells[number].metadata
    )
    return notebook


def with_own_cells(master):
    """An answer stands in a cell of the student's own; its cell and what is graded are gone."""
    notebook = solution_copy(master)
    answer = cell_of(notebook, "02-3")
    notebook.cells[notebook.cells.index(answer)] = nbformat.v4.new_code_cell(answer.source)
    notebook.cells = [cell for cell in notebook.cells if not cell.metadata.get("nbgrader", {}).get("grade")]
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("half a character: \ud800"))
    return notebook


def heavy(master, *, outputs):
    """60 MB, of outputs or of code."""
    notebook = solution_copy(master)
    cell = cell_of(notebook, "02-3")
    if outputs:
        cell.outputs = [nbformat.v4.new_output("stream", text="x" * 60_000_000)]
    else:
        cell.source += "\n# " + "x" * 60_000_000
    return notebook


ABOVE = "import os, signal\nos.kill(os.getppid(), signal.{})"
NOISE = """
import sys, threading, time
def talk():
    while True:
        print("noise", file=sys.stderr, flush=True)
        time.sleep(0.05)
threading.Thread(target=talk, daemon=True).start()
sys.displayhook(3)
"""
SUBMISSIONS = {  # student's folder: (what makes the notebook of a master, exercises that get nothing, remark)
    b"shuffled": (shuffled, (), ""),
    b"doubled": (doubled, (), ""),
    b"other-marks": (with_other_marks, (), ""),
    b"own-cells": (with_own_cells, (), ""),
    b"J\xfcrgen": (partial(with_answer, text=ABOVE.format("SIGSTOP"), where="02-3"), (), ""),
    b"kills": (partial(with_answer, text=ABOVE.format("SIGKILL"), where="02-3"), ("02.3",), ""),
    b"=cmd|'calc'!A1": (partial(with_answer, text=NOISE, where="02-3"), (), ""),
    b"floods": (partial(with_answer, text="while True: print('x' * 10**6)"), ("02.9",), ""),
    b"many-outputs": (partial(heavy, outputs=True), (), ""),
    b"much-code": (
        partial(heavy, outputs=False),
        tuple(ALL),
        "not graded: ValueError: the notebook has 60 MB without its outputs, more than 4",
    ),
}
NAMES = {b"J\xfcrgen": "J\\xfcrgen", b"=cmd|'calc'!A1": "'=cmd|'calc'!A1"}


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    return small_module(tmp_path_factory.mktemp("src"), ALL)


@pytest.fixture(scope="module")
def graded(master, tmp_path_factory):
    """The rows of the class, by student, graded without bubblewrap."""
    out = tmp_path_factory.mktemp("out")
    folder = Path(tempfile.mkdtemp(dir=out))
    for student, (made, _, _) in SUBMISSIONS.items():
        place = folder / os.fsdecode(student)
        place.mkdir()
        (place / f"{MODULE}.ipynb").write_text(nbformat.writes(made(master)), errors="surrogatepass")
    with pytest.MonkeyPatch.context() as monkeypatch, patch.dict(os.environ):
        monkeypatch.setattr(grading, "masters", lambda: {MODULE: master})
        monkeypatch.setattr(isolation, "trouble", lambda: "left out")
        monkeypatch.setattr(marking, "of_course_and_python", list)  # other tests use them at the same time
        assert grading.main("grade", str(folder), f"--out={out}", "--cell-timeout=10", "--jobs=3") == 0
    with (out / "grades" / f"{MODULE}.csv").open(encoding="utf-8-sig", newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("student", SUBMISSIONS, ids=ascii)
def test_a_submission_keeps_what_it_has_earned(graded, student):
    _, nothing, remark = SUBMISSIONS[student]
    row = graded[NAMES.get(student, student.decode(errors="replace"))]
    wanted = {exercise: 0 if exercise in nothing else points for exercise, points in ALL.items()}
    assert ({exercise: float(row[exercise]) for exercise in ALL}, row["remark"]) == (wanted, remark)


@pytest.fixture(scope="module")
def release(master):
    return make_assignment(master, 0).release


def places(cells, name):
    return [number for number, cell in enumerate(cells) if mark_of(cell) == name]


@pytest.mark.parametrize("changed", [shuffled, doubled, with_other_marks, with_own_cells])
def test_a_restored_notebook_has_each_mark_of_the_release_once_and_where_it_is_of_use(master, release, changed):
    found = restored(changed(master), release)
    marks = {mark_of(cell): cell for cell in release.cells if mark_of(cell)}
    setup = places(found.cells, "setup")[0]
    for name, cell in marks.items():
        here = places(found.cells, name)
        assert setup <= min(here, default=setup)
        if cell.metadata.nbgrader.grade:
            answers = places(found.cells, name.rpartition("-")[0])
            assert here and here[-1] > min(answers, default=-1)
    with_one_of_each(found.cells)
    kept = [mark_of(cell) for cell in found.cells if mark_of(cell)]
    assert len(kept) == len(set(kept)) and set(marks) - set(kept) <= {"02-3"}
    nbformat.validate(found)


def test_a_solved_notebook_is_restored_as_it_is(master, release):
    notebook = solved_but(master)
    assert [cell.source for cell in restored(notebook, release).cells if not mark_of(cell).startswith("02-")] == [
        cell.source for cell in notebook.cells if not mark_of(cell).startswith("02-")
    ]
