"""A module is its own files and a line in the README: a toy in a copy of the tree is built, checked and listed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest

from tools.paths import ROOT

TOY = ROOT / "tests" / "toy_module"
FOLDERS = ("course_lib", "exercises/src", "exercises/mutants", "notebooks/src", "slides", "tests", "tools")
FILES = ("README.md", "pyproject.toml")
LINE = "| [98 The toy](notebooks/98_toy.ipynb) | What goes round? | 5 | 1 |\n"
FOUND = """
import json, sys
from pathlib import Path
sys.path.insert(0, "tests/benchmarks")
import report
from course_lib import costs, viz
from course_lib.checks import check
from course_lib.cli import proof, tour
from slides import build
from tests.unit.test_layering import test_no_import_goes_up
from tests.unit.test_readme import test_every_notebook_is_in_the_table
from tools.modules import MODULES, module_of
from tools.typed_numbers import problems_of

test_no_import_goes_up()
test_every_notebook_is_in_the_table()

right, wrong = check("98.1", {"sent": 32}), check("98.1", {"sent": 8})
rows = tour.discover()[-1]
bench = report.discover()["toy"]
deck = build.build(build.decks("98")[0], Path("build"), ())
print(json.dumps({
    "costs": costs.toy_bytes(4),
    "viz": viz.plot_toy(4).title,
    "check": [right.points, wrong.points, wrong.reason],
    "tour": [proof.written(row).endswith("ok") for row in rows.prove(2, b"")],
    "benchmark": [bench.gates(bench.compare()), bench.sections(bench.compare())[0]],
    "prose": problems_of(Path("notebooks/src/98_toy.py")),
    "modules": [MODULES[-1], module_of("tests/unit/test_module_98.py")],
    "deck": Path("build/98_toy.md").read_text(),
}))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The repository without outputs, with the toy's files and its line in the README's table."""
    root = tmp_path_factory.mktemp("tree")
    outputs = shutil.ignore_patterns("__pycache__", "*.ipynb", "node_modules", "results", "toy_module")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, ignore=outputs)
    for file in FILES:
        shutil.copy(ROOT / file, root / file)
    toys = [path for path in TOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(toys) > 5 and not any((root / path.relative_to(TOY)).exists() for path in toys)
    shutil.copytree(TOY, root, dirs_exist_ok=True)
    readme = (root / "README.md").read_text()
    last = readme.rindex("\n", 0, readme.index("\n\n", readme.index("| module |"))) + 1
    end = readme.index("\n", last) + 1
    (root / "README.md").write_text(readme[:end] + LINE + readme[end:])
    return root


def start(root, *command):
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen(
        [sys.executable, *command], cwd=root, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process):
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    return out


def test_lesson_and_exercises_are_built(tree):
    """Both at a time: most of it is waiting for kernels."""
    running = [start(tree, "-m", f"tools.build_{what}", "98") for what in ("notebooks", "exercises")]
    for process in running:
        finish(process)
    lesson, release, solved = (
        nbformat.read(tree / folder / "98_toy.ipynb", as_version=4)
        for folder in ("notebooks", "exercises/release", "exercises/solutions")
    )
    assert lesson.cells[-1].outputs[0]["data"]["text/plain"] == "32"
    assert "sent = None" in release.cells[4].source and "sent = 8 * p" in solved.cells[4].source
    assert "2 of 2 points" in str(solved.cells[4].outputs)


def test_what_lists_modules_finds_this_one_and_what_holds_for_all_holds_for_it(tree):
    found = json.loads(finish(start(tree, "-c", FOUND)).splitlines()[-1])
    assert found["costs"] == 32 and found["viz"] == "Once round 4 ranks: 32 bytes"
    assert found["check"][:2] == [2, 0] and "that is one rank's message" in found["check"][2]
    assert found["tour"] == [True]
    assert found["benchmark"] == [[["toy", "2.00", "1", "2", "goal met"]], "## The toy"]
    assert found["modules"] == ["98", "98"] and found["prose"] == []
    assert "# Once round: 32 bytes" in found["deck"] and "<img" in found["deck"]
