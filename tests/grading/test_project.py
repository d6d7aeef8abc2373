"""The project: right trainers climb, each bug that may be planted fails its rung, and the rubric tells them apart."""

from __future__ import annotations

import re
import shutil

import pytest

from course_lib.checks.project.__main__ import main as climb_in
from course_lib.checks.project.ladder import RUNGS, TRAINERS, climb_up
from course_lib.checks.project.tasks import ROWS
from tools.grading.isolation import Runs
from tools.project.__main__ import projects, write
from tools.project.planted import BUGS_EACH, DIAGNOSIS, SOURCES, bank, hand_out, plant, right, with_bug
from tools.project.rubric import NAMED, POINTS, grade, of_diagnosis

SEED = 7
ALONE = "rank 0 has handed no gradient to a collective: whatever it has saved, it has trained alone"
ALL_BUGS = [(trainer, bug) for trainer, bugs in bank().items() for bug in bugs]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_right_trainer_holds_on_every_rung_whatever_its_numbers(trainer):
    climbed = [*climb_up(trainer, right(trainer), seed=12345)]
    assert len(climbed) == len(RUNGS) and [one for one in climbed if one.reason] == []


@pytest.mark.parametrize(("trainer", "bug"), ALL_BUGS, ids=[f"{t}-{b.function}-{b.wrong[:20]}" for t, b in ALL_BUGS])
def test_each_bug_alone_fails_the_rung_on_which_it_is_said_to_show(trainer, bug):
    rung = next(one for one in RUNGS if one.name == bug.rung)
    text = with_bug(right(trainer), bug)
    assert any(rung.run(trainer, text, processes, 12345) for processes in rung.world_sizes)


def test_every_seed_plants_three_bugs_in_different_functions():
    drawn = {(trainer, seed): plant(trainer, seed) for trainer in TRAINERS for seed in range(50)}
    for (trainer, _), planted in drawn.items():
        assert len(planted.functions) == len(planted.bugs) == BUGS_EACH and planted.text != right(trainer)
        assert all(f"def {name}(" in planted.text for name in planted.functions)
    assert {(t, bug) for (t, _), planted in drawn.items() for bug in planted.bugs} == set(ALL_BUGS)  # none is left out


def test_the_assignment_s_rubric_is_the_one_that_runs():
    text = (SOURCES / "ASSIGNMENT.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    told = {name: [float(x) for x in points] for name, *points in rows}
    assert told == {rung.name: [round(rung.share * POINTS[name], 1) for name in TRAINERS] for rung in RUNGS}
    assert f"other {NAMED} points" in text and f"of {', '.join(map(str, ROWS[:-1]))} and {ROWS[-1]} rows" in text


@pytest.fixture
def handed_out(tmp_path):
    hand_out(tmp_path / "project", SEED)
    return tmp_path / "project"


def named(*pairs):
    return "".join(f"{trainer}.{function}: something was wrong here\n" for trainer, function in pairs)


def mend(folder, *trainers):
    for trainer in trainers:
        (folder / f"{trainer}.py").write_text(right(trainer))


def total(rows):
    return sum(row.points for row in rows)


def test_a_project_that_is_right_has_all_points(handed_out):
    mend(handed_out, *TRAINERS)
    found = [(trainer, name) for trainer in TRAINERS for name in plant(trainer, SEED).functions]
    (handed_out / DIAGNOSIS).write_text(named(*found))
    rows = grade(handed_out, SEED, Runs())
    assert [row for row in rows if row.points < row.possible and row.name != "diagnosis"] == []
    assert total(rows) == pytest.approx(100) == sum(POINTS.values()) + NAMED


def test_a_project_as_it_was_handed_out_has_next_to_none(handed_out):
    rows = grade(handed_out, SEED, Runs())
    first = {row.name: row for row in rows}
    assert total(rows) < 20 and first["diagnosis"].points == 0
    assert all(row.remark for row in rows if row.points < row.possible)


def test_one_that_is_half_done_and_names_every_function_has_the_points_of_what_it_mended(handed_out):
    mend(handed_out, "replicas")
    (handed_out / "mesh.py").unlink()
    names = [(trainer, bug.function) for trainer, bug in ALL_BUGS]
    (handed_out / DIAGNOSIS).write_text(named(*names))
    rows = grade(handed_out, SEED, Runs())
    points = {trainer: total(row for row in rows if row.name.startswith(trainer)) for trainer in TRAINERS}
    assert points["replicas"] == POINTS["replicas"] and points["mesh"] == 0 and points["shards"] < POINTS["shards"]
    assert {row.remark for row in rows if row.name.startswith("mesh")} == {"there is no mesh.py"}
    assert rows[-1].points < NAMED / 2


def test_one_in_which_each_process_trains_alone_or_hangs_has_none(handed_out):
    alone = (handed_out / "one_device.py").read_text()
    first = alone.replace("import sys\n", "import os\nimport sys\n").replace(
        '"__main__":', '"__main__" and os.environ["RANK"] == "0":'
    )
    (handed_out / "replicas.py").write_text(first)
    (handed_out / "shards.py").write_text("raise SystemExit(3)")
    (handed_out / "mesh.py").write_text("\x00 no Python")
    rows = grade(handed_out, SEED, Runs())
    assert total(rows) == 0
    assert ALONE in {row.remark.partition(": ")[2] for row in rows}


def test_naming_what_had_no_bug_costs_half_of_what_naming_a_bug_earns():
    bugs = [(trainer, name) for trainer in TRAINERS for name in sorted(plant(trainer, SEED).functions)]
    assert of_diagnosis(named(*bugs), SEED).points == NAMED
    assert of_diagnosis(named(*bugs[:3]), SEED).points == pytest.approx(NAMED / 3, abs=0.1)
    assert of_diagnosis(named(*bugs[:3], ("mesh", "main"), ("mesh", "Residual")), SEED).points == pytest.approx(
        NAMED * 2 / 9, abs=0.1
    )
    assert of_diagnosis("no line of the right form", SEED).points == 0


def test_the_learner_s_own_climb_says_which_rungs_fail_and_never_overwrites(handed_out, capsys):
    mend(handed_out, "replicas")
    assert climb_in(str(handed_out / "replicas.py")) == 0
    assert capsys.readouterr().out.count("ok  ") == len(RUNGS)
    assert climb_in(str(handed_out.parent)) == 2 and "name the folder that holds them" in capsys.readouterr().err
    assert write(handed_out, SEED) == 1 and "nothing is overwritten" in capsys.readouterr().err


def test_a_class_is_a_folder_of_projects_and_a_link_leads_nowhere(handed_out):
    others = handed_out.parent / "class"
    shutil.copytree(handed_out, others / "ada")
    (others / "link").symlink_to(handed_out)
    (others / "empty").mkdir()
    assert projects(others) == [others / "ada"] and projects(handed_out) == [handed_out]
    assert projects(others / "empty") == []
