"""The instructor's way, from master to CSV: every submission scores what it earned, and stops nobody else's grading."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from functools import partial

import nbformat
import pytest

from tools import grade
from tools.exercise_text import learner_copy, solution_copy
from tools.paths import ROOT

pytestmark = pytest.mark.timeout(300)
MODULE = "02_collectives"
MASTER = ROOT / "exercises" / "src" / f"{MODULE}.py"
ALL = {"02.1": 8, "02.3": 5, "02.5": 5, "02.8": 4, "02.9": 4}  # of a module that holds these alone
CRASH = """
import os
def tree_broadcast(x, src):
    os._exit(3)
"""
LOOP_ON_RANKS = """
def ring_max(x):
    while True:
        pass
"""
KERNEL_EXIT = """
import os
def ring_all_gather(shard, length):
    return shard
os._exit(1)
"""
KERNEL_LOOP = """
while True:
    pass
"""
STUBBORN = """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""
FORGED = """
from types import SimpleNamespace
check = lambda *args, **options: SimpleNamespace(passed=True)
def ring_average(x):
    return x
"""


def solved_but(master, **answers):
    """A solved notebook with other answers in some cells: `c02_8=...` for cell 02-8."""
    notebook = solution_copy(master)
    for name, source in answers.items():
        cell_of(notebook, name[1:].replace("_", "-")).source = source
    return notebook


def cell_of(notebook, grade_id):
    return next(cell for cell in notebook.cells if cell.id == grade_id)


def with_edited_tests(master):
    """Unsolved, but the visible tests say that all is well, one is deleted, and one is no test any more."""
    notebook = learner_copy(master)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.source = "pass"
    cell_of(notebook, "02-3-values").metadata.pop("nbgrader")
    notebook.cells.remove(cell_of(notebook, "02-5-values"))
    return notebook


SUBMISSIONS = {  # student: (what makes the notebook of a master, exercises that get nothing)
    "solved": (solution_copy, ()),
    "untouched": (learner_copy, tuple(ALL)),
    "edited-tests": (with_edited_tests, tuple(ALL)),
    # What a graded function does on the ranks, and a check that says what one likes, cost their exercise.
    "breaks-ranks": (
        partial(solved_but, c02_5=CRASH, c02_8=LOOP_ON_RANKS, c02_9=FORGED),
        ("02.5", "02.8", "02.9"),
    ),
    # What a cell does in the kernel costs that cell.
    "breaks-kernel": (
        partial(solved_but, c02_3=KERNEL_EXIT, c02_5=KERNEL_LOOP, c02_9=STUBBORN),
        ("02.3", "02.5", "02.9"),
    ),
}


def small_module(folder):
    """The module's master with some of its exercises: what is proven here does not depend on how many there are."""
    before, *sections = re.split(r"(?m)^(?=# %% \[markdown\]\n# ## \d\d\.\d+$)", MASTER.read_text())
    kept = [section for section in sections if re.search(r"## (\S+)", section)[1] in ALL]
    source = folder / MASTER.name
    source.write_text("".join([before, *kept]))
    return source


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The CSV of one `make grade` over all submissions, by student."""
    master = small_module(tmp_path_factory.mktemp("src"))
    folder, out = (tmp_path_factory.mktemp(name) for name in ("submissions", "out"))
    for student, (made, _) in SUBMISSIONS.items():
        (folder / student).mkdir()
        nbformat.write(made(master), folder / student / f"{MODULE}.ipynb")
    (folder / "broken-file").mkdir()
    (folder / "broken-file" / f"{MODULE}.ipynb").write_text("no notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grade, "masters", lambda: [master])
        patch.setattr(sys, "argv", ["grade.py", "grade", str(folder), f"--out={out}", "--cell-timeout=12", "--jobs=3"])
        assert grade.main() == 0
    with (out / "grades" / f"{MODULE}.csv").open() as file:
        return {row["student"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("student", SUBMISSIONS)
def test_a_submission_scores_what_it_earned(graded, student):
    nothing = SUBMISSIONS[student][1]
    wanted = {exercise: 0 if exercise in nothing else points for exercise, points in ALL.items()}
    row = graded[student]
    assert row["remark"] == ""
    assert {exercise: float(row[exercise]) for exercise in ALL} == wanted
    assert float(row["points"]) == sum(wanted.values())
    assert float(row["of"]) == sum(ALL.values())


def test_a_file_that_is_no_notebook_costs_its_owner_alone(graded):
    assert float(graded["broken-file"]["points"]) == 0
    assert graded["broken-file"]["remark"].startswith("not graded: ")
    assert len(graded) == len(SUBMISSIONS) + 1


def test_nbgrader_s_release_is_the_learner_s_copy(tmp_path):
    run = subprocess.run(
        [sys.executable, "tools/grade.py", "release", f"--out={tmp_path}", "--seed=7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    made = nbformat.read(tmp_path / "release" / f"{MODULE}.ipynb", as_version=4)
    assert [cell.source for cell in made.cells] == [cell.source for cell in learner_copy(MASTER, seed=7).cells]


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("nowhere", r"^make grade: DIR=nowhere is no folder; name one that holds STUDENT/NN_name.ipynb\n$"),
        ("tests", r"^make grade: no submission in tests; put each into STUDENT/01_why_distributed.ipynb, 02_coll"),
    ],
)
def test_a_wrong_folder_is_one_line(folder, line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["grade.py", "grade", folder])
    assert grade.main() == 1
    assert re.search(line, capsys.readouterr().err)
