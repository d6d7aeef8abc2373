"""A cell that fails because the Setup cell was passed over, or another one has not run, says which to run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from IPython.core.error import UsageError

from course_lib.absent import why_absent
from tools.paths import ROOT

SETUP = "# Setup: run this cell first\n%load_ext course_lib\nimport torch\nfrom course_lib import comm as messages\n"
CELLS = [
    SETUP,
    "for step in range(3):\n    shards = step",
    "%%ranks 4\nx = 1",
    "this is no Python",
    "def f(inner): pass",
]
RUN_SETUP = "Run the cell called Setup, near the top of this page, once: it loads what the page needs."


NO_RANKS = UsageError("Cell magic `%%ranks` not found.")


def missing(name):
    return NameError(f"name '{name}' is not defined", name=name)


@pytest.mark.parametrize("error", [NO_RANKS, missing("torch"), missing("messages")])
def test_what_setup_loads_leads_to_setup(error):
    assert why_absent(error, CELLS) == RUN_SETUP


@pytest.mark.parametrize("name", ["shards", "step", "f"])
def test_what_another_cell_defines_leads_to_the_cells_above(name):
    assert why_absent(missing(name), CELLS) == (
        f"`{name}` comes from a cell that this kernel has not run: choose Run > Run All Above Selected Cell."
    )


@pytest.mark.parametrize(
    "error",
    [
        missing("mispelt"),
        missing("x"),
        missing("inner"),
        UsageError("`%%tiem` not found."),
        ValueError("torch"),
    ],
)
def test_nothing_is_said_of_a_learner_s_own_mistake(error):
    assert why_absent(error, CELLS) == ""


def test_nothing_is_said_in_a_notebook_without_setup():
    assert why_absent(NO_RANKS, ["import torch"]) == ""


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks/src").glob("*.py")), ids=lambda path: path.stem)
def test_every_lesson_s_setup_cell_is_named(path):
    """In the first line, which is all that JupyterLab shows of a folded cell."""
    text = path.read_text(encoding="utf-8")
    assert re.search(r"\n# %% folded=true( varies=\"[^\"]+\")?\n# Setup: run this cell first;", text)


@pytest.mark.parametrize(
    ("cell", "said"), [("%%ranks 4\n1", True), ("torch", True), ("nobody", False), ("1 + 1", False)]
)
def test_a_real_shell_says_it_behind_the_error(tmp_path, cell, said):
    page = tmp_path / "lesson.ipynb"
    page.write_text(json.dumps({"cells": [{"cell_type": "code", "source": [*SETUP.splitlines(keepends=True)]}]}))
    code = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "course_lib.absent")
shell.run_cell({cell!r})
"""
    environment = {**os.environ, "JPY_SESSION_NAME": str(page), "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (run.stderr.splitlines()[-1:] == [RUN_SETUP]) == said
