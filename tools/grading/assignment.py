"""An assignment through nbgrader's own parts, in this process: the release, and the points of one submission.

nbgrader's database is kept in memory, a fresh one from the same bytes for each submission: none can find or change it.
"""

from __future__ import annotations

import logging
import sqlite3
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nbgrader.api import Base, Gradebook
from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, Execute, OverwriteCells
from sqlalchemy import create_engine
from sqlalchemy.exc import SAWarning

from tools.exercise_text import SEED, read_master, without_solution
from tools.grading.page import feedback
from tools.grading.restored import count_the_best, is_graded, mark_of, restored, with_one_of_each

Run = Callable[[Any], None]  # executes a notebook and fills in the outputs of its cells

logging.getLogger("traitlets").setLevel(logging.CRITICAL)  # what goes wrong is an exception too


class ExerciseStubs(ClearSolutions):
    """nbgrader's ClearSolutions with the course's stubs, which name their exercise."""

    def _replace_solution_region(self, cell: Any, language: str) -> bool:
        before = cell.source
        cell.source = without_solution(before, cell.metadata.get("nbgrader", {}).get("grade_id", ""))
        return bool(cell.source != before)


PARTS = GenerateAssignment.class_traits()["preprocessors"].default()
RELEASE = [{ClearSolutions: ExerciseStubs}.get(part, part) for part in PARTS]
STUDENT = "student"  # each database has one
SCORE = [part for part in Autograde.class_traits()["autograde_preprocessors"].default() if part is not Execute]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What learners get, and nbgrader's database: the cells, their hidden tests, and one submission without points."""

    module: str
    seed: int
    release: Any
    book: bytes
    possible: dict[str, float]


@cache
def make_assignment(master: Path, seed: int) -> Assignment:
    """The assignment of a module with the inputs and given numbers of a seed."""
    module = master.stem
    with database() as (url, book):
        create_tables(url)
        with Gradebook(url) as grades:
            grades.update_or_create_assignment(module)
        release = through(RELEASE, read_master(master, seed), facts(url, module))
        with Gradebook(url) as grades:
            grades.update_or_create_student(STUDENT)
            with warnings.catch_warnings(action="ignore", category=SAWarning):  # of nbgrader's session
                grades.update_or_create_submission(module, STUDENT)
            possible = {cell.name: cell.max_score for cell in grades.find_notebook(module, module).grade_cells}
        return Assignment(module=module, seed=seed, release=release, book=book.serialize(), possible=possible)


class Outcome(NamedTuple):
    """Of one submission, by graded cell: its points, and why it failed; and nbgrader's page for the student."""

    points: dict[str, float]
    why: dict[str, str]
    page: str


def points_of(assignment: Assignment, notebook: Any, run: Run, *, page: bool) -> Outcome:
    """Return what a submission earned, and its `page` if that is asked for; `run` executes where that is safe.

    Raises: whatever nbgrader has against the notebook, and whatever `run` raises.
    """
    module = assignment.module
    with database(assignment.book) as (url, _):
        notebook = through([OverwriteCells], restored(notebook, assignment.release), facts(url, module))  # hidden tests
        with_one_of_each(notebook.cells)
        run(notebook)
        count_the_best(notebook.cells)
        notebook = through(SCORE, notebook, facts(url, module))
        with Gradebook(url) as grades:
            found = grades.find_submission_notebook(module, module, STUDENT)
            points = {grade.name: grade.auto_score or 0.0 for grade in found.grades}
        return Outcome(points, why_failed(notebook.cells), feedback(notebook, facts(url, module)) if page else "")


def why_failed(cells: list[Any]) -> dict[str, str]:
    """What each graded cell that failed has said, by its name."""
    return {
        mark_of(cell): str(output.get("evalue", ""))  # which a submission may have put out itself
        for cell in cells
        if is_graded(cell)
        for output in cell.outputs
        if output.output_type == "error"
    }


def seed_of(notebook: Any, otherwise: int) -> int:
    """The GRADE_SEED that a submission's own cells name: what its given numbers and inputs came from."""
    named = (SEED.search(cell.source) for cell in notebook.cells if cell.cell_type == "code")
    return next((int(found["seed"]) for found in named if found and len(found["seed"]) < 10), otherwise)


def through(parts: Iterable[Callable[..., Any]], notebook: Any, resources: dict[str, Any]) -> Any:
    """Hand a notebook through nbgrader's preprocessors."""
    for part in parts:
        notebook, resources = part()(notebook, resources)
    return notebook


def facts(url: str, module: str) -> dict[str, Any]:
    """What nbgrader's preprocessors ask for."""
    return {"nbgrader": {"db_url": url, "assignment": module, "notebook": module, "student": STUDENT}}


@contextmanager
def database(content: bytes = b"") -> Iterator[tuple[str, sqlite3.Connection]]:
    """A database in memory, by its address for nbgrader and as a connection that keeps it alive."""
    name = f"file:/{uuid.uuid4().hex}?vfs=memdb"
    with closing(sqlite3.connect(name, uri=True)) as keeper, closing(sqlite3.connect(":memory:")) as source:
        if content:
            source.deserialize(content)
            source.backup(keeper)
        yield f"sqlite:///{name}&uri=true", keeper


def create_tables(url: str) -> None:
    """nbgrader's tables; in a database without them it would ask another program, alembic, for their version."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    engine.dispose()
