"""Marks submissions, several at a time; whatever one of them does is this student's alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

from tools.grading.assignment import make_assignment, points_of, seed_of
from tools.grading.isolation import IsolationError, Runs
from tools.grading.submissions import Submission
from tools.grading.table import Grade

Points = tuple[dict[str, float], str]

EXECUTE = Path(__file__).with_name("execute.py")


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A grade, nbgrader's page for the student, and how long it took."""

    grade: Grade
    page: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Marker:
    """The masters by module, and how a course runs its submissions."""

    masters: dict[str, Path]
    seed: int
    cell_timeout: int
    feedback: bool = False  # whether to make the pages too
    runs: Runs = field(default_factory=Runs)

    def mark_all(self, found: list[Submission], jobs: int) -> Iterator[Marked]:
        """Yield each grade as soon as it is there; who stops listening, or Ctrl-C, ends what still runs."""
        for module in sorted({one.module for one in found}):
            make_assignment(self.masters[module], self.seed)  # once, before the workers ask for it
        workers = ThreadPoolExecutor(jobs)
        try:
            for done in as_completed([workers.submit(self.mark, one) for one in found]):
                yield done.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)
            self.runs.stop()

    def mark(self, submission: Submission) -> Marked:
        """Mark one notebook. A row that is not graded says what the notebook, or nbgrader, has against it."""
        started = time.monotonic()
        master = self.masters[submission.module]
        possible = make_assignment(master, self.seed).possible
        points, page, remarks = dict.fromkeys(possible, 0.0), "", [submission.remark]
        try:
            notebook = read(submission.path)
            seed = seed_of(notebook, self.seed)
            if seed != self.seed:
                remarks.append(f"made with GRADE_SEED={seed}, not {self.seed}, and graded with {seed}")
            assignment = make_assignment(master, seed)
            points, page = twice(lambda: points_of(assignment, notebook, self.execute, page=self.feedback))
        except Exception as error:  # nbgrader's, or what a strange file makes of nbformat: this student's alone
            remarks.append(f"not graded: {one_line(error)}")
        grade = Grade(
            student=submission.student,
            module=submission.module,
            points=points,
            possible=possible,
            remark="; ".join(filter(None, remarks)),
        )
        return Marked(grade=grade, page=page, seconds=time.monotonic() - started)

    def execute(self, notebook: str) -> str:
        """The outputs of a notebook's cells, as JSON."""
        return self.runs.alone(EXECUTE, f"--cell-timeout={self.cell_timeout}", given=notebook)


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook in a file.

    Raises: ValueError if it is none.
    """
    if not path.stat().st_size:
        raise ValueError("the file is empty")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def twice(run: Callable[[], Points]) -> Points:
    """Run, and once more if the run gave no answer: a kernel that a busy machine could not start is nobody's fault."""
    try:
        return run()
    except IsolationError:
        return run()


def one_line(error: Exception) -> str:
    """An exception's kind and the first line of what it says."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
