"""The README's example prints what the README says, and its table lists what is there."""

from __future__ import annotations

import re
import subprocess
import sys

from course_lib import presets
from course_lib.verify.museum.wild import library_of, wild_bugs, wild_falls
from tools.contents import CONTENTS, LESSONS, contents, exercise_minutes
from tools.lesson import number, told_minutes
from tools.paths import ROOT
from tools.readme_figure import FIGURE, LADDER, MEMORY, SCHEDULES, WILD, memory, picture, schedules, wild
from tools.route_pages import PLACEMENT, ROUTES, page, placement_page

README = (ROOT / "README.md").read_text()


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[1]


def test_the_example_prints_its_output(tmp_path):
    script = tmp_path / "example.py"
    script.write_text(block("python"))
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == (block("text"), "")


def test_the_example_is_short():
    lines = [line for line in block("python").splitlines() if line]
    assert len(lines) <= 6


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links and [link for link in links if not (ROOT / link).exists()] == []


def test_the_table_tells_the_minutes_of_lessons_and_exercises():
    for lesson in LESSONS:
        exercises = ROOT / f"exercises/src/{lesson.name}"
        minutes = sum(exercise_minutes(exercises)) if exercises.exists() else "–"
        row = next(line for line in README.splitlines() if line.startswith(f"| [{number(lesson)} "))
        assert row.endswith(f" | {told_minutes(lesson)} | {minutes} |")


def test_the_table_of_contents_follows_from_the_lessons():
    assert CONTENTS.read_text() == contents(), "run `make notebooks`, which writes it anew"
    links = re.findall(r"\]\(([^)#]+)\)", contents())
    assert len(links) > 3 * len(LESSONS) and [x for x in links if not (CONTENTS.parent / x).exists()] == []


def test_the_pages_of_routes_and_of_the_placement_test_follow_too():
    assert ROUTES.read_text() == page() and PLACEMENT.read_text() == placement_page(), "run `make notebooks`"
    links = re.findall(r"\]\(([^)#]+)\)|href=\"([^\"]+)\"", page() + placement_page())
    assert len(links) > 50 and [x or y for x, y in links if not (ROUTES.parent / (x or y)).exists()] == []
    targets = re.findall(r"\(ROUTES\.md#([^)]+)\)", CONTENTS.read_text())
    headings = re.findall(r"^## (.+)$", page(), re.MULTILINE)
    assert targets == [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings]


def test_every_notebook_is_in_the_table():
    notebooks = {f"notebooks/{path.stem}.ipynb" for path in (ROOT / "notebooks/src").glob("*.py")}
    assert notebooks and notebooks <= set(re.findall(r"\]\((notebooks/[^)]+)\)", README))


def test_the_figure_is_what_the_library_draws():
    assert f'src="{FIGURE.relative_to(ROOT)}"' in README
    assert FIGURE.read_text() == picture().svg, "run `make notebooks`, which draws it anew"


def test_the_stills_are_what_the_library_draws():
    for path, draw in ((MEMORY, memory), (SCHEDULES, schedules), (WILD, wild)):
        assert path.read_text() == draw().still, "run `make notebooks`, which draws it anew"
    assert "breaks rung 2, gradients, by 300%" in LADDER.read_text()  # measured, but this is no rounding


def test_bugs_of_real_releases_are_counted():
    found = wild_bugs()
    said = re.search(r"On old releases of (\d+) libraries it catches (\d+) bugs", README)
    assert [*map(int, said.groups())] == [len({library_of(name) for name in found}), len(found)]
    assert all((ROOT / f"wild/{name}.py").exists() for name in found)


def test_the_bug_that_is_still_there_is_one_of_the_pinned_torch():
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    row = presets.read("wild", "results")["torch_dtensor_mse"]
    assert f"still there in torch {pinned}" in README and row["old"]["version"] == pinned
    assert row["old"]["ended"] == "fell" and abs(row["old"]["deviation"] - 1) < 1e-9  # twice as large on two ranks


def test_most_of_the_drawn_releases_hide_under_their_loss():
    shares = [fall.off for fall in wild_falls().values()]
    assert "Most hide under a loss that hardly moves" in " ".join(README.split())
    assert sum(share < 0.02 for share in shares) > len(shares) / 2
