"""Masters, learners' copies and mutants as the tests need them: functions, without a kernel."""

from __future__ import annotations

import importlib.util
import re
from functools import cache

import pytest

from course_lib.checks.kit import runner
from tools.exercise_text import learner_copy, solution_copy
from tools.paths import ROOT

EXERCISES = ROOT / "exercises"
MODULES = {path.stem[:2]: path.stem for path in sorted((EXERCISES / "src").glob("[0-9]*.py"))}


@pytest.fixture(scope="session", autouse=True)
def _one_warm_pool():
    """All checks of a session share the checks' pools."""
    yield
    runner.shutdown()


@pytest.fixture(scope="session")
def answers():
    """`answers("solutions" | "release", module, seed)`: the names that a notebook's solution cells define."""

    @cache
    def of(kind, module="02_collectives", seed=0):
        copy = {"solutions": solution_copy, "release": learner_copy}[kind]
        return names_defined(copy(EXERCISES / "src" / f"{module}.py", seed))

    return of


def answer_of(exercise, answers, kind, seed=0):
    """What a notebook's own `check("02.2", ...)` passes."""
    module = MODULES[exercise[:2]]
    (name,) = re.findall(rf'^check\("{re.escape(exercise)}", (\w+)', master_text(module), re.MULTILINE)
    return answers(kind, module, seed)[name]


@cache
def master_text(module):
    return (EXERCISES / "src" / f"{module}.py").read_text()


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
    """MUTANTS of a file. Its name is no Python name; not in sys.modules, its functions travel by value."""
    path = EXERCISES / "mutants" / f"{module}.py"
    spec = importlib.util.spec_from_file_location("mutants_of_an_exercise", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.MUTANTS
