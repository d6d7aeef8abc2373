"""Marks submissions, several at a time; whatever one of them does is this student's alone."""

from __future__ import annotations

import compileall
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import nbformat

from tools.grading import isolation
from tools.grading.assignment import make_assignment, points_of, seed_of
from tools.grading.isolation import Runs
from tools.grading.progress import execute
from tools.grading.submissions import Submission
from tools.grading.table import Grade, GradingError
from tools.grading.watch import Watch, of_course_and_python
from tools.paths import ROOT

FILE_BYTES = 200_000_000  # with outputs, which are not read any further
SOURCE_BYTES = 4_000_000  # a course's notebook has a sixtieth of it


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A grade, why each graded cell failed, nbgrader's page for the student, and how long it took."""

    grade: Grade
    why: dict[str, str]
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
    running: set[str] = field(default_factory=set)

    def mark_all(self, found: list[Submission], jobs: int) -> Iterator[Marked]:
        """Yield each grade as soon as it is there; who stops listening, or Ctrl-C, ends what still runs.

        Raises: GradingError if a submission has changed what later ones are run from.
        """
        for module in sorted({one.module for one in found}):
            make_assignment(self.masters[module], self.seed)  # once, before the workers ask for it
        compileall.compile_dir(ROOT / "course_lib", quiet=2)  # each run has a copy of these files too
        sys.dont_write_bytecode = True
        watch = Watch([*of_course_and_python(), *(one.path for one in found)]) if isolation.trouble() else Watch([])
        workers = ThreadPoolExecutor(jobs)
        try:
            with isolation.awake():
                for done in as_completed([workers.submit(self.mark_watched, one, watch) for one in found]):
                    yield done.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)
            self.runs.stop()

    def mark_watched(self, submission: Submission, watch: Watch) -> Marked:
        """Mark one notebook, and see that it has changed nothing."""
        self.running.add(submission.student)
        marked = self.mark(submission)
        if changed := watch.changed():
            raise GradingError(
                f"while {', '.join(sorted(self.running))} ran, something changed that submissions are run from: "
                f"{changed}; their points are not written. Put it right (git status, make setup-dev), and grade again "
                "without the one that did it"
            )
        self.running.discard(submission.student)
        return marked

    def mark(self, submission: Submission) -> Marked:
        """Mark one notebook. A row that is not graded says what the notebook, or nbgrader, has against it."""
        started = time.monotonic()
        master = self.masters[submission.module]
        possible = make_assignment(master, self.seed).possible
        points, why, page, remarks = dict.fromkeys(possible, 0.0), dict[str, str](), "", [submission.remark]
        try:
            notebook = read(submission.path)
            seed = seed_of(notebook, self.seed)
            if seed != self.seed:
                remarks.append(f"made with GRADE_SEED={seed}, not {self.seed}, and graded with {seed}")
            assignment = make_assignment(master, seed)
            run = partial(execute, runs=self.runs, cell_timeout=self.cell_timeout)
            points, why, page = points_of(assignment, notebook, run, page=self.feedback)
        except Exception as error:  # nbgrader's, or what a strange file makes of nbformat: this student's alone
            remarks.append(f"not graded: {one_line(error)}")
        grade = Grade(
            student=submission.student,
            module=submission.module,
            points=points,
            possible=possible,
            remark="; ".join(filter(None, remarks)),
        )
        return Marked(grade=grade, why=why, page=page, seconds=time.monotonic() - started)


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook in a file, without what it has put out before and without pasted pictures.

    Raises: ValueError if it is none, or a very large one.
    """
    size = path.stat().st_size
    if not size:
        raise ValueError("the file is empty")
    if size > FILE_BYTES:
        raise ValueError(f"the file has {size / 1e6:.0f} MB, more than {FILE_BYTES / 1e6:.0f}")
    try:
        notebook = json.loads(path.read_bytes())  # any Unicode, with a mark or without
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no notebook: {error}") from error
    if not isinstance(notebook, dict):
        raise ValueError("it is no notebook: it has no cells")
    for cell in notebook.get("cells", []):
        if cell.get("cell_type") == "code":
            cell.update(outputs=[], execution_count=None)
        cell.pop("attachments", None)
    notebook.get("metadata", {}).pop("widgets", None)
    text = json.dumps(notebook, ensure_ascii=False).encode("utf-8", "replace").decode()  # half characters become "?"
    if len(text) > SOURCE_BYTES:
        raise ValueError(
            f"the notebook has {len(text) / 1e6:.0f} MB without its outputs, more than {SOURCE_BYTES / 1e6:.0f}"
        )
    found: Any = nbformat.reads(text, as_version=4)
    return found


def one_line(error: Exception) -> str:
    """An exception's kind and the first line of what it says."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
