"""What `make check` runs: all of it, one module's part (`ONLY=04`), or what a change touches (`CHANGED=1`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tools.modules import MODULES, SHARED
from tools.paths import DEVELOPER, ROOT, python_of

PYTHON = str(python_of(DEVELOPER))
PYTEST = (PYTHON, "-m", "pytest", "-q", "-p", "tools.cpu_of_tests")
PLAIN = (*PYTEST, "-p", "no:nbval")  # which every process would take a second and a half to import
IN_ORDER = ("-n2", "--no-loadscope-reorder")  # the tests' own conftest.py lets what takes longest begin first
NBVAL = (
    *PYTEST,
    "--nbval",
    "--nbval-current-env",
    "--nbval-sanitize-with=tests/notebooks/sanitize.cfg",
    "--nbval-cell-timeout=600",  # above the ranks' own limits, so that a hang is explained by them
    "--timeout=0",  # nbval has its own limit per cell
    "-n2",
    "--dist=loadfile",  # a notebook's ranks wait for its kernel most of the time, so two notebooks share the cores
)
OWN_TESTS = {"notebooks": "tests/notebooks", "exercises": "tests/grading", "slides": "tests/slides"}
EDITED = re.compile(r"(notebooks|exercises|slides|course_lib/checks)/(?:\w+/)*(?:module_)?(\d\d)b?(?=[_./])")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of the check, and the files that it is for."""

    name: str
    command: tuple[str, ...]
    on: tuple[str, ...] = ()
    beside: bool = False  # may share the cores with the steps that are timed or start ranks
    alone: bool = False  # only when nothing runs beside: two browsers on two cores starve each other
    outside: bool = False  # needs Node and Chromium

    @property
    def is_pytest(self) -> bool:
        """Whether the command can tell what each of its tests took."""
        return self.command[: len(PYTEST)] == PYTEST


LINT = Step(name="lint", command=(PYTHON, "-m", "ruff", "check", "."))
FORMAT = Step(name="format", command=(PYTHON, "-m", "ruff", "format", "--check", "-q", "."))
TYPES = Step(name="types", command=(PYTHON, "-m", "mypy"), beside=True)
SOURCES = Step(
    name="notebooks follow their sources", command=(PYTHON, "-m", "tools.build_notebooks", "--check"), beside=True
)
MASTERS = Step(
    name="exercises follow their masters", command=(PYTHON, "tools/build_exercises.py", "--check"), beside=True
)
SLIDES = Step(name="slides", command=(PYTHON, "slides/build.py", "--check"), beside=True, outside=True)
SLIDE_TESTS = Step(name="slide check's own tests", command=PLAIN, on=("tests/slides",), beside=True, outside=True)
UNIT = Step(name="unit tests", command=(*PLAIN, "-n2", "--dist=worksteal"), on=("tests/unit", "tests/notebooks"))
# Ranks wait for each other much of the time, so two files of them share the cores.
RANKS = Step(name="rank tests", command=(*PLAIN, *IN_ORDER, "--dist=loadfile"), on=("tests/ranks", "tests/chaos"))
STRICT = Step(name="notebooks and solutions, strict", command=NBVAL, on=("notebooks", "exercises/solutions"))
GRADING = Step(name="stubs, mutants, grading", command=(*PLAIN, *IN_ORDER, "--dist=loadfile"), on=("tests/grading",))
BROWSER = Step(name="browser", command=PLAIN, on=("tests/browser",), alone=True, outside=True)

UNCHANGED = (LINT, FORMAT)  # what another version of ruff may find where nothing differs from `main`
ALWAYS = (*UNCHANGED, TYPES, SOURCES, MASTERS)
TESTS = (SLIDE_TESTS, UNIT, RANKS, GRADING, BROWSER)
EVERYTHING = (*ALWAYS, SLIDES, SLIDE_TESTS, UNIT, RANKS, STRICT, GRADING, BROWSER)
READ_THE_TEXT = ("unit/examples", "unit/project_files", "unit/readme", "unit/style", "notebooks/shown_source")
READ_THE_CODE = ("unit/door", "unit/layering", "unit/names", "unit/rooms")  # which comments do not touch


def rules(*readers: str) -> Step:
    """Return the step of tests that read the whole repository, so that no use of a name leads to them."""
    files = [name.replace("/", "/test_") for name in readers]
    return Step(name="rules of the house", command=(*PLAIN, "-n2"), on=tuple(f"tests/{file}.py" for file in files))


RULES = rules(*READ_THE_TEXT, *READ_THE_CODE)


def of_module(module: str) -> tuple[Step, ...]:
    """Return the steps of one module: its lesson, exercises, slides and tests, and what every change must pass.

    Raises: SystemExit with one line if there is no such module.
    """
    if module not in MODULES:
        raise SystemExit(f"make check: ONLY={module} is no module; choose one of {', '.join(MODULES)}")
    tests = [of_modules(step, {module}) for step in TESTS if step is not BROWSER]
    return (*ALWAYS, RULES, *decks({module}), *tests, *strict({module}, {module}))


def of_change(changed: Iterable[str], tests: Iterable[str]) -> tuple[Step, ...]:
    """Return the steps of a change: what every change must pass, these tests, and what it edits of which module.

    The exercises' tests run for the edited modules alone if nothing else of the code has changed.
    """
    changed, tests = list(changed), {test for test in tests if test.partition("::")[0] not in RULES.on}
    edited: dict[str, set[str]] = {}
    for hit in filter(None, map(EDITED.match, changed)):
        edited.setdefault(hit[1], set()).add(hit[2])
    for folder in edited.keys() & OWN_TESTS.keys():
        tests |= {str(path.relative_to(ROOT)) for path in (ROOT / OWN_TESTS[folder]).glob("test_*.py")}
    answers = edited.get("exercises", set()) | edited.get("course_lib/checks", set())
    chosen = [replace(step, on=on) for step in TESTS if (on := tuple(sorted(filter(_in(step.on), tests))))]
    if answers and all(EDITED.match(file) for file in changed if file.endswith(".py")):
        chosen = [of_modules(step, {*answers, SHARED}) if step.name == GRADING.name else step for step in chosen]
    lessons = edited.get("notebooks", set())
    read = RULES if any(file.endswith(".py") for file in changed) else rules(*READ_THE_TEXT)
    return (*ALWAYS, read, *decks(edited.get("slides", set())), *chosen, *strict(lessons, answers))


def of_modules(step: Step, modules: set[str]) -> Step:
    """Return the same tests, those of other modules left out."""
    return replace(step, command=(*step.command, f"--module={','.join(sorted(modules))}"))


def decks(modules: set[str]) -> list[Step]:
    """Return the slide check of these modules' decks, one step for each."""
    there = sorted(module for module in modules if any((ROOT / "slides").glob(f"{module}_*.md")))
    return [replace(SLIDES, name=f"slides {module}", on=(module,)) for module in there]


def strict(lessons: set[str], answers: set[str]) -> list[Step]:
    """Return nbval's run of these modules' lessons and solutions; no step if there are none."""
    wanted = [("notebooks", module) for module in sorted(lessons)]
    wanted += [("exercises/solutions", module) for module in sorted(answers)]
    files = [path for folder, module in wanted for path in sorted((ROOT / folder).glob(f"{module}*.ipynb"))]
    return [replace(STRICT, on=tuple(str(path.relative_to(ROOT)) for path in files))] if files else []


def _in(folders: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda file: any(Path(file).is_relative_to(folder) for folder in folders)
