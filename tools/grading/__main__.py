"""`make release` makes assignments, `make grade` turns submissions into CSVs, `make grade-all` tries both."""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.build_exercises import EXERCISES
from tools.exercise_text import learner_copy, solution_copy
from tools.grading import isolation
from tools.grading.assignment import make_assignment
from tools.grading.gradebooks import Points, plain_of, read_gradebook
from tools.grading.marking import Marked, Marker
from tools.grading.misconceptions import Misconceptions
from tools.grading.names import file_name
from tools.grading.sheet import SheetError, read_sheet, write_whole
from tools.grading.submissions import Submission, find_submissions
from tools.grading.table import Grade, GradingError, Table, exercises_of, read_roster, unknown
from tools.outputs import store
from tools.paths import ROOT, quiet_kernels

OUT = ROOT / "build"


def main(*words: str) -> int:
    """Release, grade, or run the round trip of every module."""
    arguments = parsed(words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name in letters that this terminal lacks
    os.environ.update(quiet_kernels())  # where nbconvert finds its templates
    try:
        return int(arguments.run(arguments) or 0)
    except GradingError as error:
        print(f"make {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nmake {arguments.command}: stopped; what was finished is written", file=sys.stderr)
        return 130


def parsed(words: tuple[str, ...]) -> argparse.Namespace:
    """The command line that the Makefile uses."""
    parser = argparse.ArgumentParser(prog="tools.grading", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    seed = os.environ.get("GRADE_SEED") or "0"
    for name, run in (("release", release), ("grade", grade), ("grade-all", grade_all)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--seed", type=int, default=seed, help="other inputs and given numbers per course")
        command.add_argument("--out", type=Path, default=OUT, help="folder to write to")
        command.add_argument("--cell-timeout", type=int, default=60, help="seconds for a cell that students write")
        command.add_argument("--jobs", type=int, default=2, help="submissions graded at the same time")
        if name == "grade":
            command.add_argument("folder", type=Path, help="what was handed in: a folder per student, or named files")
            command.add_argument("--roster", type=Path, help="CSV with a column student: who is missing becomes a row")
            command.add_argument("--feedback", action="store_true", help="also HTML; it shows the hidden tests")
    book = commands.add_parser("gradebook")
    book.set_defaults(run=gradebook)
    book.add_argument("book", type=Path, help="what Canvas or Moodle has exported, or a CSV with a column student")
    book.add_argument("module", help="the module's name or number")
    book.add_argument("--back", action="store_true", help="take the points out of it, into a plain CSV")
    book.add_argument("--out", type=Path, default=OUT, help="folder that has grades/")
    return parser.parse_args(words)


def masters() -> dict[str, Path]:
    """The sources of all modules."""
    return {path.stem: path for path in sorted((EXERCISES / "src").glob("[0-9]*.py"))}


def release(arguments: argparse.Namespace) -> None:
    """Write the learners' copies as nbgrader makes them, for all modules."""
    for module, master in masters().items():
        target = arguments.out / "release" / f"{module}.ipynb"
        store(make_assignment(master, arguments.seed).release, target)
        print(f"{target} (GRADE_SEED {arguments.seed})")


def grade(arguments: argparse.Namespace) -> None:
    """Grade what is found; each row is written when it is ready, and every file that was not taken is named."""
    if not arguments.folder.is_dir():
        raise GradingError(f"DIR={arguments.folder} is no folder; name one that holds STUDENT/NN_name.ipynb")
    roster = read_roster(arguments.roster)
    found, refused = find_submissions(arguments.folder, list(masters()))
    for line in refused:
        print(line)
    if not found:
        names = ", ".join(f"{module}.ipynb" for module in masters())
        raise GradingError(f"no submission in {arguments.folder}; put each into STUDENT/{names}")
    with only_grader_in(arguments.out / "grades") as folder:
        tables = {module: table_of(folder, module, arguments.seed) for module in sorted({one.module for one in found})}
        told_class = {module: Misconceptions() for module in tables}
        all_marked = mark_all(arguments, found, arguments.folder, feedback=arguments.feedback)
        for number, marked in enumerate(all_marked, 1):
            tables[marked.grade.module].add(marked.grade)
            told_class[marked.grade.module].add(marked.grade.student, marked.why)
            print(f"[{number}/{len(found)}] {told(marked)}", flush=True)
            if marked.page:
                page = arguments.out / "feedback" / file_name(marked.grade.student) / f"{marked.grade.module}.html"
                page.parent.mkdir(parents=True, exist_ok=True)
                page.write_text(marked.page, encoding="utf-8", errors="backslashreplace")
        for module, table in tables.items():
            add_missing(table, module, roster, arguments.seed)
            print(table)
            if (content := told_class[module].content()) is not None:
                print(f"{keep_slips(arguments.out, module, content)}: what the class was told, and how often")
    if strangers := unknown({one.student for one in found}, roster):
        print(strangers)


def keep_slips(out: Path, module: str, content: bytes) -> Path:
    """Write a module's table of misconceptions, and return where it lies."""
    path = out / "slips" / f"{module}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    return path


def gradebook(arguments: argparse.Namespace) -> None:
    """Write our points into a copy of another system's table, or its points into a plain one."""
    try:
        if not arguments.book.is_file():
            raise SheetError("there is no such file; give the one that Moodle or Canvas has exported")
        book = read_gradebook(arguments.book.read_bytes())
        module = next((name for name in masters() if name.startswith(arguments.module)), None)
        if not arguments.module or module is None:
            raise SheetError(f"MODULE={arguments.module} is none; choose one of {', '.join(masters())}")
        if arguments.back:
            written, strangers = plain_of(book.points(module)), []
        else:
            grades = arguments.out / f"grades/{module}.csv"
            if not grades.exists():
                raise SheetError(f"there is no {grades} to take points from; run make grade for this module first")
            _, rows = read_sheet(grades.read_bytes())
            found = {row["student"]: Points(float(row["points"]), float(row["of"])) for row in rows}
            written, strangers = book, book.fill(found, module)
    except (SheetError, OSError) as error:
        raise GradingError(f"BOOK={arguments.book}: {error}") from error
    target = arguments.out / "grades" / f"{module}.{'from' if arguments.back else 'to'}_{book.kind}.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, written.content())
    print(f"{target}: {len(written.points(module))} rows with points")
    if strangers:
        print(f"not in {arguments.book.name}: {', '.join(strangers)}")


def table_of(folder: Path, module: str, seed: int) -> Table:
    """The module's table as it is; a heading that a spreadsheet has changed is known by its exercises."""
    return Table(folder / f"{module}.csv", exercises_of(make_assignment(masters()[module], seed).possible))


@contextmanager
def only_grader_in(folder: Path) -> Iterator[Path]:
    """Keep a folder of tables to this run, since each run writes whole tables from what it has read."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except BlockingIOError as error:
        raise GradingError(f"another make grade writes to {folder}; wait for its end") from error
    finally:
        os.close(handle)


def add_missing(table: Table, module: str, roster: list[str], seed: int) -> None:
    """A row for each student of the class who handed in nothing, now or before."""
    possible = make_assignment(masters()[module], seed).possible
    for student in roster:
        if student not in table.rows:
            nothing = dict.fromkeys(possible, 0.0)
            table.add(Grade(student=student, module=module, points=nothing, possible=possible, remark="no submission"))


def mark_all(
    arguments: argparse.Namespace, found: list[Submission], folder: Path, *, feedback: bool = False
) -> Iterator[Marked]:
    """Mark with the command line's options; say first what a submission can reach."""
    print(f"isolation: {isolation.told()}", flush=True)
    marker = Marker(
        masters=masters(),
        seed=arguments.seed,
        cell_timeout=arguments.cell_timeout,
        feedback=feedback,
        runs=isolation.Runs(hidden=(arguments.out, folder)),
    )
    return marker.mark_all(found, arguments.jobs)


def told(marked: Marked) -> str:
    """A line about one grade."""
    found = marked.grade
    points = f"{found.total:g} of {found.of:g}"
    return f"{found.module} {found.student}: {points}, {marked.seconds:.0f} s {found.remark}".rstrip()


def grade_all(arguments: argparse.Namespace) -> int:
    """Grade a solved and an untouched submission of every module: all points, and none."""
    bad = 0
    with tempfile.TemporaryDirectory(prefix="course-") as name:
        folder = Path(name)
        for module, master in masters().items():
            store(solution_copy(master), folder / "solved" / f"{module}.ipynb")
            store(learner_copy(master), folder / "untouched" / f"{module}.ipynb")
        found, _ = find_submissions(folder, list(masters()))
        for marked in mark_all(arguments, found, folder):
            wanted = marked.grade.of if marked.grade.student == "solved" else 0
            bad += marked.grade.total != wanted
            print(f"{told(marked)}, expected {wanted:g}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
