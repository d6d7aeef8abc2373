"""Masters, learners' copies and mutants as the tests need them: functions, without a kernel."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from course_lib.checks.kit import registry, runner
from course_lib.ranks import server
from tools.exercise_text import learner_copy, read_master, solution_copy
from tools.modules import module_of
from tools.paths import ROOT

EXERCISES = ROOT / "exercises"
# Wrong answers are followed by new ranks; what these import by way of an exercise is imported once for all of them.
server.preload(
    *(f"course_lib.checks.{path.parent.name}.{path.stem}" for path in registry.CHECKS.glob("module_*/[!_]*.py"))
)
MODULES = {path.stem[:2]: path.stem for path in sorted((EXERCISES / "src").glob("[0-9]*.py"))}


class FileAtATime(LoadScopeScheduling):
    """Of two workers each takes a file at a time; of the largest one, a module."""

    def _split_scope(self, nodeid):
        file, _, test = nodeid.partition("::")
        return file + (module_of(file, test) if Path(file).stem == "test_exercises" else "")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Not by `xdist_group`, which pytest 9.2 ignores in silence: a class was graded twice, once by each worker."""
    return FileAtATime(config, log)


def pytest_collection_modifyitems(items):
    """What takes longest begins first."""
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.stem != "test_nbgrader_roundtrip", -tests[item.path], item.path))


@pytest.fixture(scope="session", autouse=True)
def _one_warm_pool():
    """All checks of a session share the checks' pools."""
    yield
    runner.shutdown()


@pytest.fixture(scope="session")
def answers():
    """`answers("solutions" | "release", module, seed)`: the names that a notebook's solution cells define."""

    return defined_in


@cache
def defined_in(kind, module="02_collectives", seed=0):
    """The names that the solution cells of one copy of a master define."""
    copy = {"solutions": solution_copy, "release": learner_copy}[kind]
    return names_defined(copy(EXERCISES / "src" / f"{module}.py", seed))


def answer_of(exercise, answers, kind, seed=0):
    """What a notebook's own `check("02.2", ...)` passes."""
    module = MODULES[exercise[:2]]
    return answers(kind, module, seed)[name_of_answer(exercise)]


def name_of_answer(exercise):
    return re.search(rf'^check\("{re.escape(exercise)}", (\w+)', cell_of(exercise), re.MULTILINE)[1]


def cell_of(exercise):
    """The master's cell in which an exercise is answered, with nbgrader's marks."""
    return cells_of(MODULES[exercise[:2]])[exercise.replace(".", "-")]


@cache
def cells_of(module):
    return {cell.id: cell.source for cell in read_master(EXERCISES / "src" / f"{module}.py").cells}


def names_defined(notebook):
    """Execute the cells that define answers; their checks, the graded cells and the demonstrations are left out."""
    namespace = {"__name__": "answers"}
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and not mark.get("grade") and mark:
            define(cell.source, cell.id, namespace)
    return namespace


def define(text, name, namespace):
    tree = ast.parse(text, f"<{name}>")
    tree.body = [node for node in tree.body if not _shows(node)]
    exec(compile(tree, f"<{name}>", "exec"), namespace)


def _shows(node):
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("check", "print")


def mutants_of(module):
    """(exercise, level, reason, answer, hangs) of a file's tables; what is a dict there is an edit of the solution.

    The file's name is no Python name; not in sys.modules, its functions travel by value. A module without a file has
    none: a test says for each exercise what is missing.
    """
    path = EXERCISES / "mutants" / f"{module}.py"
    if not path.exists():
        return []
    spec = importlib.util.spec_from_file_location("mutants_of_an_exercise", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return [
        (*where, reason, edited(where[0], answer) if isinstance(answer, dict) else answer, hangs)
        for table, hangs in ((found.WRONG, False), (found.HANGS, True))
        for where, wrong in table.items()
        for reason, answer in wrong.items()
    ]


def edited(exercise, edits):
    """The solution of an exercise, with pieces of its text changed one after the other, wherever they stand."""
    text = cell_of(exercise)
    for old, new in edits.items():
        assert old in text, f"mutant of {exercise}: {old!r} does not stand in the solution; change the mutant with it"
        text = text.replace(old, new)
    namespace = dict(defined_in("solutions", MODULES[exercise[:2]]))
    define(text, exercise, namespace)
    return namespace[name_of_answer(exercise)]
