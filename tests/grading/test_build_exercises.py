"""Learners' copies and solutions follow their master; what they must not show is gone."""

from __future__ import annotations

import re

import nbformat
import pytest

from course_lib.checks.kit import registry
from course_lib.checks.kit.formula import FormulaExercise
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.script import ScriptExercise
from tools import exercise_facts
from tools.build_exercises import EXERCISES, all_drift
from tools.exercise_text import learner_copy, read_master, solution_copy, stub
from tools.outputs import store

WIDEST_DRAWING = 90  # characters
MASTERS = sorted((EXERCISES / "src").glob("[0-9]*.py"))


@pytest.fixture(params=MASTERS, ids=lambda path: path.stem)
def master(request):
    return request.param


def test_there_are_masters():
    assert MASTERS


def test_the_committed_copies_follow_their_masters():
    assert all_drift(EXERCISES) == []


def test_a_learner_s_copy_holds_no_answer(master):
    text = "\n".join(cell.source for cell in learner_copy(master).cells)
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text
    assert "GRADE_SEED + 1" not in text
    assert "<!-- =" not in text  # how a number of the text was computed
    for cell in learner_copy(master).cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            assert "NotImplementedError" in cell.source or " = None" in cell.source


def test_every_answer_has_graded_cells_with_points(master):
    marks = [cell.metadata["nbgrader"] for cell in read_master(master).cells if "nbgrader" in cell.metadata]
    answers = {mark["grade_id"] for mark in marks if mark["solution"]}
    graded = [mark for mark in marks if mark["grade"]]
    assert len(answers) == sum(key.startswith(master.stem[:2]) for key in registry.exercises())
    for answer in answers:
        levels = [mark for mark in graded if mark["grade_id"].startswith(f"{answer}-")]
        assert len(levels) >= 2
        assert all(mark["locked"] and mark["points"] > 0 and mark["schema_version"] == 3 for mark in levels)


def test_every_exercise_of_the_master_is_headed_by_its_title_and_points(master):
    text = "\n".join(cell.source for cell in read_master(master).cells)
    specs = [spec for key, spec in registry.exercises().items() if key.startswith(master.stem[:2])]
    rows = re.findall(r"^\| (\d\d\.\d+) \| ([^|]+) \| ([^|]+) \| \w+ \| \w+ \| \d+ \| (\d+) \|$", text, re.MULTILINE)
    assert [(key, f"{kind}: {title}", int(points)) for key, kind, title, points in rows] == [
        (spec.key, spec.title if ": " in spec.title else f"{kind}: {spec.title}", exercise_facts.points(spec))
        for spec, (_, kind, _, _) in zip(specs, rows, strict=True)
    ]
    for spec in specs:
        assert f"## {spec.key} {spec.title[0].upper()}{spec.title[1:]}\n" in text
        assert f"· {exercise_facts.points(spec)} points.*" in text.split(f"## {spec.key} ")[1].split("\n")[2]
    assert f"exercises, {sum(map(exercise_facts.points, specs))} points, about " in text


@pytest.mark.parametrize("exercise", registry.exercises())
def test_functions_are_graded_with_other_inputs_as_well(exercise):
    """Where one would do, one does: each such run costs every submission its time, but for formulas, which take none.
    Numbers are drawn anew instead, and a script without a task prints numbers of its processes, never the same twice.
    """
    spec = registry.find(exercise)
    again = [name for name, level in spec.levels.items() if getattr(level, "again", False)]
    if isinstance(spec, FormulaExercise):
        assert len(again) == len(spec.levels)
    else:
        script = isinstance(spec, ScriptExercise) and (spec.task is not None or spec.alone)
        assert len(again) == (isinstance(spec, ProbeExercise) or script)


def test_graded_cells_say_what_they_are_and_import_grade_afresh(master):
    """The first line is all that is seen of a folded cell; whoever rebinds `grade` elsewhere changes nothing."""
    for cell in read_master(master).cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            first, second, *_ = cell.source.splitlines()
            assert re.fullmatch(r"# Graded: \d\d\.\d+ [\w -]+", first)
            assert second == "from course_lib.checks import grade"


def test_the_setup_cell_is_named_in_its_first_line(master):
    cells = learner_copy(master).cells
    setup = next(cell for cell in cells if cell.id == "setup")
    assert setup.source.startswith("# Setup: ")
    assert setup is next(cell for cell in cells if cell.cell_type == "code")


def test_no_drawn_table_is_wider_than_a_narrow_page(master):
    """JupyterLab at 1300 pixels wraps what is wider, and a table that wraps cannot be read."""
    shown = [cell.source for cell in learner_copy(master).cells if cell.cell_type == "markdown"]
    drawn = [block for text in shown for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL)]
    assert [line for block in drawn for line in block.splitlines() if len(line) > WIDEST_DRAWING] == []


def test_the_seed_of_a_course_is_baked_in(master):
    assert "GRADE_SEED = 7" in "\n".join(cell.source for cell in learner_copy(master, seed=7).cells)


def test_stubs_name_their_exercise_and_numbers_stay_open():
    assert stub("    return x\n", "    ", "02-10") == (
        '    raise NotImplementedError("Exercise 02.10: write your code in place of this line")'
    )
    assert stub("a = 2 * p\nb = a\n", "", "02-1") == "a = None\nb = None"


def test_drift_is_found(tmp_path, master):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / master.name).write_text(master.read_text())
    assert all_drift(tmp_path) == [
        f"release/{master.stem}: missing; run make exercises",
        f"solutions/{master.stem}: missing; run make exercises",
    ]
    store(learner_copy(master), tmp_path / "release" / f"{master.stem}.ipynb")
    changed = solution_copy(master)
    changed.cells[3].source += "\n# by hand"
    store(changed, tmp_path / "solutions" / f"{master.stem}.ipynb")
    assert all_drift(tmp_path) == [f"solutions/{master.stem}: cell 3 differs from its master; run make exercises"]
    changed.cells.pop()
    store(changed, tmp_path / "solutions" / f"{master.stem}.ipynb")
    assert len(all_drift(tmp_path)) == 1


def test_the_learner_s_copy_is_a_valid_notebook_without_outputs(master):
    notebook = nbformat.read(EXERCISES / "release" / f"{master.stem}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
