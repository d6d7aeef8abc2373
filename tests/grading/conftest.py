"""Masters, learners' copies and mutants as the tests need them: functions, without a kernel."""

from __future__ import annotations

import importlib.util

import pytest

from course_lib.checks.kit import runner
from tools.exercise_text import learner_copy, solution_copy
from tools.paths import ROOT

EXERCISES = ROOT / "exercises"


@pytest.fixture(scope="session", autouse=True)
def _one_warm_pool():
    """All checks of a session share the checks' pools."""
    yield
    runner.shutdown()


@pytest.fixture(scope="session")
def answers():
    """`answers("solutions" | "release")`: the names that a notebook's solution cells define."""

    def of(kind, module="02_collectives"):
        copy = {"solutions": solution_copy, "release": learner_copy}[kind]
        return names_defined(copy(EXERCISES / "src" / f"{module}.py"))

    return of


def names_defined(notebook):
    """Execute the cells that define answers; their checks, the graded cells and the demonstrations are left out."""
    namespace = {"__name__": "answers"}
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and not mark.get("grade") and mark:
            lines = [line for line in cell.source.splitlines() if not line.startswith(("check(", "print("))]
            exec(compile("\n".join(lines), f"<{cell.id}>", "exec"), namespace)
    return namespace


def mutants_of(module):
    """MUTANTS of a module's file."""
    return mutants_file(module).MUTANTS


def mutants_file(module):
    """A file whose name is no Python name; not in sys.modules, so its functions travel by value."""
    path = EXERCISES / "mutants" / f"{module}.py"
    spec = importlib.util.spec_from_file_location("mutants_of_an_exercise", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
