"""The kit of a workshop: a handout without answers, a sheet whose minutes add up, seats for what the route runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import zipfile

import pytest

from course_lib.cli.commands import COMMANDS
from tools.exercise_text import HIDDEN, SOLUTION
from tools.lesson import cells
from tools.paths import ROOT
from tools.routes import routes, slides_of, split_deck
from tools.workshop.__main__ import main, seats_for, write
from tools.workshop.decks import cut
from tools.workshop.handout import FOLDS, unfolded
from tools.workshop.run_sheet import clock, lines_of
from tools.workshop.seats import TEXTS

MASTERS = sorted((ROOT / "exercises/src").glob("[0-9]*.py"))
LESSONS = sorted((ROOT / "notebooks/src").glob("[0-9]*.py"))
LONG_ENOUGH = 60  # letters of an answer that are nobody's own words


def squeezed(text):
    """Without spaces and comments, so that neither an indent nor a number's formula hides anything."""
    return re.sub(r"<!--.*?-->|\s", "", text, flags=re.DOTALL)


def read(path):
    """A file's text; of a notebook what its cells say."""
    text = path.read_text(encoding="utf-8")
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"]) if path.suffix == ".ipynb" else text


def texts_of(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".ipynb", ".md", ".py", ".txt")]
    return {str(path.relative_to(folder)): squeezed(read(path)) for path in files}


def solutions():
    """The body of each solution of the masters that is long enough to be known again."""
    found = [one["body"] for master in MASTERS for one in SOLUTION.finditer(master.read_text(encoding="utf-8"))]
    return [body for body in map(squeezed, map(textwrap.dedent, found)) if len(body) >= LONG_ENOUGH]


def folded():
    """What stands in the folds of the lessons, but for what one needs before one starts."""
    texts = [cell.source for lesson in LESSONS for cell in cells(lesson) if cell.cell_type == "markdown"]
    folds = [fold for text in texts for fold in FOLDS.finditer(text) if fold["asked"] != "Before you start"]
    return [answer for fold in folds if len(answer := squeezed(fold["answer"])) >= LONG_ENOUGH]


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """The kit of a day, all but its slides, whose titles stay as the decks have them."""
    folder = tmp_path_factory.mktemp("kit")
    seats = seats_for("day", 20, "kempner_h100")
    titles = {part.deck.stem: [title for title, _ in part.shown] for part in seats.route.parts if part.slides}
    write(seats, folder, titles)
    return folder


def test_the_handout_holds_no_answer(kit):
    names = [str(path.relative_to(kit / "handout")) for path in (kit / "handout").rglob("*")]
    assert not [name for name in names if re.search(r"(^|/)(\.git|solutions|mutants|exercises/project|src)(/|$)", name)]
    handed, answers = texts_of(kit / "handout"), solutions()
    assert len(answers) > 80 and len(handed) > 400
    marks = ("###BEGINSOLUTION", "###ENDSOLUTION", "###BEGINHIDDENTESTS")
    judge = "course_lib/checks/"  # which knows what it compares with
    pages = {name: text for name, text in handed.items() if not name.startswith(judge)}
    assert [name for name, text in pages.items() if any(mark in text for mark in marks)] == []
    assert [(name, one) for one in answers for name, text in pages.items() if one in text] == []


def test_the_handout_holds_no_folded_answer(kit):
    pages = {name: text for name, text in texts_of(kit / "handout").items() if not name.startswith("course_lib/")}
    assert len(folded()) > 100
    assert [(name, one) for one in folded() for name, text in pages.items() if one in text] == []
    assert "told in the room" in (kit / "handout/notebooks/03_mlp_ddp.ipynb").read_text()
    outputs = [cell for path in (kit / "handout").rglob("*.ipynb") for cell in json.loads(path.read_text())["cells"]]
    assert not any(cell.get("outputs") for cell in outputs)


def test_answers_would_be_found_where_they_are():
    solved, published = texts_of(ROOT / "exercises/solutions"), texts_of(ROOT / "notebooks")
    assert all(any(one in text for text in solved.values()) for one in solutions())
    there = [one for one in folded() if any(one in text for text in published.values())]
    assert len(there) > 0.9 * len(folded())  # a lesson's pages may not be built yet
    assert all(HIDDEN.search(master.read_text()) is None for master in MASTERS)  # the build writes them


def test_the_zip_is_the_folder_and_its_course_is_whole(kit):
    names = zipfile.ZipFile(kit / "handout.zip").namelist()
    files = [path for path in (kit / "handout").rglob("*") if path.is_file()]
    assert {f"handout/{path.relative_to(kit / 'handout')}" for path in files} == {n for n in names if n[-1] != "/"}
    run = subprocess.run(
        [sys.executable, "-c", "import course_lib, sys; print(course_lib.__file__)"],
        cwd=kit / "handout",
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert run.stdout.strip() == str(kit / "handout/course_lib/__init__.py")
    start = (kit / "handout/START.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", start)
    assert len(links) > 8 and [link for link in links if not (kit / "handout" / link).exists()] == []


def test_the_kit_s_first_page_leads_to_all_of_it(kit):
    links = re.findall(r"\]\(([^)]+)\)", (kit / "README.md").read_text())
    assert [name for name in links if not (kit / name).exists()] == ["slides"]  # which are not built for this test
    there = {path.name for path in kit.iterdir()} - {"README.md", "handout"}  # the folder is in the zip's line
    assert {*links} == there | {"slides"}


def test_the_minutes_of_the_sheet_are_those_of_the_route(kit):
    route = routes()["day"]
    sheet = (kit / "run_sheet.md").read_text()
    rows = re.findall(r"^\| \d+:\d\d \| ([\d.]+) \|", sheet, re.MULTILINE)
    assert sum(map(float, rows)) == pytest.approx(route.minutes, abs=0.05 * len(rows))
    titles = {part.deck.stem: [title for title, _ in part.shown] for part in route.parts if part.slides}
    assert len(rows) == sum(len([*lines_of(part, titles)]) for part in route.parts)
    assert (
        f"That is {clock(route.minutes)} of 8:00." in sheet
        and "| **guess**, run |" in sheet
        and "| **tell** |" in sheet
    )


def test_a_cut_deck_has_the_chosen_slides_alone(tmp_path):
    part = next(part for part in routes()["day"].parts if part.lesson == "06")
    deck = tmp_path / "06_cut.md"
    deck.write_text(cut(part))
    assert slides_of(deck) == dict(part.shown) and len(part.shown) == 2
    assert split_deck(deck)[0] == split_deck(part.deck)[0]


def test_seats_ask_for_what_the_route_takes(kit):
    seats = seats_for("day", 20, "kempner_h100")
    assert (seats.cores, seats.memory_gib, seats.gpus, seats.nodes) == (4, 6, 1, 5)
    job = (kit / "seat.sbatch").read_text()
    assert "--cpus-per-task=4\n#SBATCH --mem=6G\n#SBATCH --gpus=1\n#SBATCH --time=9:00:00" in job
    assert "--gpus" not in seats_for("day", 20, "").filled("seat.sbatch")
    for script in ("seat.sbatch", "preflight.sbatch"):
        assert subprocess.run(["bash", "-n", kit / script]).returncode == 0


def test_a_preflight_says_a_line_for_a_seat(kit, tmp_path):
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    script = seats_for("day", 3, "").filled("preflight.sbatch")
    env = {"PATH": "/usr/bin:/bin", "COURSE_ENV": str(tmp_path / "env"), "SLURM_ARRAY_TASK_ID": "2"}
    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    line = (tmp_path / "preflight-002.txt").read_text()
    assert re.fullmatch(r"seat 002  \S+  CPU, 4 ranks: of \d+ findings .+\n", line), line + run.stderr
    assert "4 ranks" in run.stderr  # all that preflight said is in the job's log


def test_the_page_of_troubles_has_ten_and_names_commands_that_are_there():
    page = (TEXTS / "troubles.md").read_text()
    assert len(re.findall(r"^\| (?!---|what)", page, re.MULTILINE)) == 10
    assert {*re.findall(r"-m course_lib (\w+)", page)} <= {*COMMANDS}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--route=week",), "workshop: ROUTE=week; a workshop is one of the routes; choose one of hours, day"),
        (("--route=day", "--seats=0"), "workshop: SEATS=0; "),
        (("--route=day", "--cluster=moon"), "moon"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(words, said, capsys, tmp_path):
    assert main(*words, f"--out={tmp_path}") == 1
    told = capsys.readouterr().err
    assert told.startswith("make workshop: ") and said in told and told.count("\n") == 1


def test_a_question_that_labels_a_fold_stays():
    kept = "<details><summary>Before you start</summary>You need lesson 00.</details>"
    assert unfolded(kept) == kept and "Why?" in unfolded("<details><summary>Why?</summary>So.</details>")
