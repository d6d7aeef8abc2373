"""The instructor's way, from master to CSV: every submission scores what it earned, and stops nobody else's grading."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from unittest.mock import patch

import nbformat
import pytest

from course_lib.checks import given
from tools.exercise_text import learner_copy, solution_copy
from tools.grading import __main__ as grading
from tools.grading import isolation, marking, progress
from tools.paths import ROOT

pytestmark = pytest.mark.timeout(1200)
MODULE = "02_collectives"
MASTER = ROOT / "exercises" / "src" / f"{MODULE}.py"
ALL = {"02.1": 8, "02.3": 5, "02.5": 5, "02.8": 4, "02.9": 4}  # of a module that holds these alone
CRASH = """
import os
def tree_broadcast(x, src):
    os._exit(3)
"""
LOOP_ON_RANKS = """
import time
def ring_max(x):
    while True:
        time.sleep(0.01)
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
import time
while True:
    try:
        while True:
            time.sleep(0.01)
    except BaseException:
        pass
"""
FORGED = """
from types import SimpleNamespace
check = lambda *args, **options: SimpleNamespace(passed=True)
grade = lambda *args, **options: None
def ring_average(x):
    return x
"""
THIEF = """
import json
import course_lib
from pathlib import Path
above = [*Path.cwd().parents, *Path(course_lib.__file__).parents]
solved = next(found for place in above for found in place.glob("exercises/solutions/02_collectives.ipynb"))
source = next("".join(cell["source"]) for cell in json.loads(solved.read_text())["cells"] if cell["id"] == "02-3")
exec(source)
"""
VANDAL = """
import sqlite3
import subprocess
from pathlib import Path
for place in [Path.cwd(), *Path.cwd().parents[:-1]]:
    for book in [*place.glob("gradebook.db"), *place.glob("*/gradebook.db"), *place.glob("*/*/gradebook.db")]:
        with sqlite3.connect(book) as found:
            found.execute("UPDATE grade_cells SET max_score = 0")
for _ in range(3):
    subprocess.Popen(["sh", "-c", "sleep %d & sleep %d"], start_new_session=True)
"""
SLEEP_S = 987654  # no other program sleeps as long: what is left of VANDAL is known by it


@pytest.fixture(scope="module", autouse=True)
def _own_environment():
    """The command sets variables for the processes that it starts; tests after these have none of them."""
    with patch.dict(os.environ):
        yield


def solved_but(master, **answers):
    """A solved notebook with other answers in some cells: `c02_8=...` for cell 02-8."""
    notebook = solution_copy(master)
    for name, source in answers.items():
        cell_of(notebook, name[1:].replace("_", "-")).source = source
    return notebook


def cell_of(notebook, grade_id):
    return next(cell for cell in notebook.cells if cell.id == grade_id)


def with_edited_tests(master):
    """Unsolved; visible tests say that all is well, one is deleted, one is no test any more, an exercise is gone."""
    notebook = learner_copy(master)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.source = "pass"
    cell_of(notebook, "02-3-values").metadata.pop("nbgrader")
    notebook.cells.remove(cell_of(notebook, "02-5-values"))
    for name in ("02-9", "02-9-values", "02-9-bits", "02-9-steps"):
        notebook.cells.remove(cell_of(notebook, name))
    return notebook


def of_a_thief(master):
    """Made with another GRADE_SEED, what its exercise gives typed in as numbers; it looks for solutions and grades."""
    notebook = solution_copy(master, seed=7)
    answer = cell_of(notebook, "02-1")
    answer.source = answer.source.replace("p, M = transfer", "p, M = {}, {}".format(*given("02.1", 7)))
    cell_of(notebook, "02-3").source = THIEF
    cell_of(notebook, "02-5").source = VANDAL % (SLEEP_S, SLEEP_S)
    return notebook


SUBMISSIONS = {  # student: (what makes the notebook of a master, exercises that get nothing)
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
    # The solutions are not there, nor are the points of others; typed numbers do not follow other given ones.
    "a-thief": (of_a_thief, ("02.1", "02.3", "02.5")),
}
REMARKS = {"a-thief": "made with GRADE_SEED=7, not 0, and graded with 7"}
SPOILT = {  # what is no notebook of the course any more, and what its row says
    "broken-file": ("no notebook", "not graded: ValueError: it is no notebook: Expecting value: line 1 "),
    "empty-file": ("", "not graded: ValueError: the file is empty"),
    "a-list": ("[]", "not graded: ValueError: it is no notebook: it has no cells"),
}


def small_module(folder, wanted=ALL):
    """The module's master with some of its exercises: what is proven here does not depend on how many there are."""
    before, *sections = re.split(r"(?m)^(?=# %% \[markdown\]\n# ## \d\d\.\d+$)", MASTER.read_text())
    kept = [section for section in sections if re.search(r"## (\S+)", section)[1] in wanted]
    source = folder / MASTER.name
    source.write_text("".join([before, *kept]))
    return source


def stripped(master):
    """Solved, then sent through a program that drops metadata and ids."""
    notebook = solution_copy(master)
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = {}, f"new-{number}"
    return notebook


def graded_rows(submissions, out, master, *options):
    """The rows of one `make grade` over notebooks and texts, by student."""
    folder = Path(tempfile.mkdtemp(dir=out))
    for student, content in submissions.items():
        (folder / student).mkdir(parents=True)
        text = content if isinstance(content, str) else nbformat.writes(content)
        (folder / student / f"{MODULE}.ipynb").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grading, "masters", lambda: {MODULE: master})
        assert grading.main("grade", str(folder), f"--out={out}", "--cell-timeout=15", *options) == 0
    with (out / "grades" / f"{MODULE}.csv").open(encoding="utf-8-sig") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    return small_module(tmp_path_factory.mktemp("src"))


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def graded(master, out, tmp_path_factory):
    """All submissions, graded without bubblewrap: what has to hold on every machine."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # half a minute: a second worker that does it again fails here
        (tmp_path_factory.getbasetemp().parent / "graded").touch(exist_ok=False)
    notebooks = {student: made(master) for student, (made, _) in SUBMISSIONS.items()}
    texts = {student: text for student, (text, _) in SPOILT.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "trouble", lambda: "left out")
        patch.setattr(marking, "of_course_and_python", list)  # other tests use them at the same time
        return graded_rows({**notebooks, **texts, "stripped": stripped(master)}, out, master, "--jobs=3")


@pytest.mark.parametrize("student", SUBMISSIONS)
def test_a_submission_scores_what_it_earned(graded, student):
    expect(graded[student], SUBMISSIONS[student][1], REMARKS.get(student, ""))


def expect(row, nothing, remark):
    wanted = {exercise: 0 if exercise in nothing else points for exercise, points in ALL.items()}
    assert row["remark"] == remark
    assert {exercise: float(row[exercise]) for exercise in ALL} == wanted
    assert float(row["points"]) == sum(wanted.values())
    assert float(row["of"]) == sum(ALL.values())


@pytest.mark.parametrize("student", SPOILT)
def test_a_file_that_is_no_notebook_costs_its_owner_alone(graded, student):
    assert float(graded[student]["points"]) == 0 and float(graded[student]["of"]) == sum(ALL.values())
    assert graded[student]["remark"].startswith(SPOILT[student][1])


def test_lost_metadata_is_said(graded):
    assert graded["stripped"]["remark"].startswith(
        "not graded: ValueError: its cells have lost nbgrader's metadata and "
    )
    assert len(graded) == len(SUBMISSIONS) + len(SPOILT) + 1


def test_one_more_student_joins_the_class(graded, master, out, tmp_path, capsys):
    """In bubblewrap where this machine has it, with a roster, and with the page for the student."""
    roster = tmp_path / "class.csv"
    roster.write_text("student\nsolved\nabsent\nedited-tests\n")
    rows = graded_rows({"solved": solution_copy(master)}, out, master, f"--roster={roster}", "--feedback")
    expect(rows["solved"], (), "")
    assert (rows["absent"]["points"], rows["absent"]["of"], rows["absent"]["remark"]) == ("0", "26", "no submission")
    assert {name: row for name, row in rows.items() if name not in ("solved", "absent")} == graded
    said = capsys.readouterr().out
    assert re.search(rf"^\[1/1\] {MODULE} solved: 26 of 26, \d+ s$", said, re.MULTILINE)
    assert said.rstrip().endswith(f"{MODULE}.csv: 2 rows written, {len(graded)} kept from before")
    assert f"isolation: {isolation.told()}" in said
    page = (out / "feedback" / "solved" / f"{MODULE}.html").read_text()
    assert "Score: 26.0 / 26.0" in page


def test_ctrl_c_keeps_what_is_done_and_ends_the_rest(master, out, tmp_path, monkeypatch, capsys):
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text(f"import subprocess; subprocess.run(['sleep', '{SLEEP_S}'])")
    monkeypatch.setattr(progress, "EXECUTE", sleeper)
    monkeypatch.setattr(grading, "told", raise_at_the_second())
    with pytest.raises(AssertionError):
        graded_rows({"ann": "", "ben": "", "cho": learner_copy(master)}, tmp_path, master, "--jobs=1")
    assert "make grade: stopped; what was finished is written" in capsys.readouterr().err
    with (tmp_path / "grades" / f"{MODULE}.csv").open(encoding="utf-8-sig") as file:
        assert [row["student"] for row in csv.DictReader(file)] == ["ann", "ben"]


def raise_at_the_second():
    """A progress line that is interrupted when the second grade is there."""
    told = iter(["first line"])

    def tell(marked):
        for line in told:
            return line
        raise KeyboardInterrupt

    return tell


def test_no_process_of_a_submission_is_left(graded):
    asleep = subprocess.run(["pgrep", "-f", f"^sleep {SLEEP_S}"], capture_output=True, text=True).stdout
    assert asleep == ""


def test_the_release_is_the_learner_s_copy(tmp_path, capsys):
    assert grading.main("release", f"--out={tmp_path}", "--seed=7") == 0
    for module, master in grading.masters().items():
        made = nbformat.read(tmp_path / "release" / f"{module}.ipynb", as_version=4)
        assert [cell.source for cell in made.cells] == [cell.source for cell in learner_copy(master, seed=7).cells]
    assert f"{MODULE}.ipynb (GRADE_SEED 7)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("nowhere", r"^make grade: DIR=nowhere is no folder; name one that holds STUDENT/NN_name.ipynb\n$"),
        ("tests", r"^make grade: no submission in tests; put each into STUDENT/01_why_distributed.ipynb, 02_coll"),
    ],
)
def test_a_wrong_folder_is_one_line(folder, line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert grading.main("grade", folder) == 1
    assert re.search(line, capsys.readouterr().err)
