"""nbgrader without its server: `release` makes an assignment, `grade` turns a folder of submissions into a CSV.

Each submission is graded in a throw-away course folder with a database of its own, so that none can disturb another.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nbgrader.api import Gradebook

from tools.build_exercises import EXERCISES, write, write_source
from tools.exercise_text import exercise_of, learner_copy, solution_copy
from tools.paths import ROOT, quiet_kernels

OUT = ROOT / "build"
CONFIG = """
from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, Execute
from tools.nbgrader_parts import ExerciseStubs, SurvivingExecute

replaced = {{ClearSolutions: ExerciseStubs, Execute: SurvivingExecute}}
defaults = {{kind: kind.class_traits()[name].default() for kind, name in
            ((GenerateAssignment, "preprocessors"), (Autograde, "autograde_preprocessors"))}}
c = get_config()
c.GenerateAssignment.preprocessors = [replaced.get(part, part) for part in defaults[GenerateAssignment]]
c.Autograde.autograde_preprocessors = [replaced.get(part, part) for part in defaults[Autograde]]
c.OverwriteCells.add_missing_cells = True
c.SurvivingExecute.timeout = {cell_timeout}
c.SurvivingExecute.shutdown_kernel = "immediate"
c.NbGrader.log_level = "WARN"
"""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """Points of one submission by graded cell; `remark` says what went wrong outside the exercises."""

    student: str
    module: str
    points: dict[str, float]
    possible: dict[str, float]
    remark: str = ""

    def of_exercise(self, exercise: str) -> float:
        return sum(points for cell, points in self.points.items() if exercise_of(cell) == exercise)


def main() -> int:
    """Release, grade, or run the round trip of every module."""
    arguments = parse_arguments()
    try:
        return int(arguments.run(arguments) or 0)
    except GradingError as error:
        print(f"make {arguments.command}: {error}", file=sys.stderr)
        return 1


class GradingError(Exception):
    """Something an instructor can mend, in one line."""


def parse_arguments() -> argparse.Namespace:
    """The command line that the Makefile uses."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    seed = int(os.environ.get("GRADE_SEED") or 0)
    for name, run in (("release", release), ("grade", grade), ("grade-all", grade_all)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--seed", type=int, default=seed, help="other inputs and given numbers per course")
        command.add_argument("--out", type=Path, default=OUT, help="folder to write to")
        command.add_argument("--cell-timeout", type=int, default=60, help="seconds; keep above the checks' own 10")
        command.add_argument("--jobs", type=int, default=2, help="submissions graded at the same time")
        if name == "grade":
            command.add_argument("folder", type=Path, help="holds STUDENT/…/NN_name.ipynb")
            command.add_argument("--feedback", action="store_true", help="also HTML; it shows the hidden tests")
    return parser.parse_args()


def release(arguments: argparse.Namespace) -> None:
    """Write the learners' copies as nbgrader makes them, for all modules, several at a time."""

    def one(master: Path) -> Path:
        with tempfile.TemporaryDirectory(prefix="course-") as folder:
            course = make_course(Path(folder), master, arguments)
            made = course / "release" / master.stem / f"{master.stem}.ipynb"
            return Path(shutil.copy(made, arguments.out / "release" / made.name))

    (arguments.out / "release").mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.jobs) as workers:
        for target in workers.map(one, masters()):
            print(f"{target} (GRADE_SEED {arguments.seed})")


def grade(arguments: argparse.Namespace) -> None:
    """Grade every submission of every module found, and write the points."""
    grades = grade_folder(arguments)
    for module in sorted({found.module for found in grades}):
        target = arguments.out / "grades" / f"{module}.csv"
        write_csv([found for found in grades if found.module == module], target)
        print(f"{target}: {sum(found.module == module for found in grades)} submissions")


def grade_folder(arguments: argparse.Namespace) -> list[Grade]:
    """All grades, by module and student."""
    if not arguments.folder.is_dir():
        raise GradingError(f"DIR={arguments.folder} is no folder; name one that holds STUDENT/NN_name.ipynb")
    grades: list[Grade] = []
    for master in masters():
        found = submissions(arguments.folder, master.stem)
        if found:
            grades += grade_module(master, found, arguments)
    if not grades:
        names = ", ".join(f"{master.stem}.ipynb" for master in masters())
        raise GradingError(f"no submission in {arguments.folder}; put each into STUDENT/{names}")
    return grades


def grade_module(master: Path, found: dict[str, Path], arguments: argparse.Namespace) -> list[Grade]:
    """Make the assignment once, then grade each submission in a copy of that course folder."""
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        course = make_course(Path(folder) / "course", master, arguments)

        def one(student: str) -> Grade:
            # Twice: a kernel that a busy machine could not start is not the student's fault.
            for attempt in ("first", "second"):
                place = Path(folder) / attempt / student
                shutil.copytree(course, place)
                result = grade_submission(place, student, master.stem, found[student], arguments)
                if not result.remark:
                    break
            return result

        with ThreadPoolExecutor(arguments.jobs) as workers:
            return list(workers.map(one, sorted(found)))


def grade_submission(course: Path, student: str, module: str, notebook: Path, arguments: argparse.Namespace) -> Grade:
    """Autograde one notebook and read its points; whatever happens is this student's alone."""
    place = course / "submitted" / student / module
    place.mkdir(parents=True)
    shutil.copy(notebook, place / f"{module}.ipynb")
    output = nbgrader(course, "autograde", module, f"--student={student}")
    if getattr(arguments, "feedback", False) and output.returncode == 0:
        nbgrader(course, "generate_feedback", module, f"--student={student}")
        made = course / "feedback" / student / module / f"{module}.html"
        if made.exists():
            target = arguments.out / "feedback" / student / made.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(made, target)
    remark = "" if output.returncode == 0 else f"not graded: {last_line(output.stderr)}"
    return read_grade(course, student, module, remark)


def read_grade(course: Path, student: str, module: str, remark: str) -> Grade:
    """Points from the course folder's database; a submission that could not be graded has none."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        possible = {cell.name: cell.max_score for cell in book.find_notebook(module, module).grade_cells}
        points = dict.fromkeys(possible, 0.0)
        if not remark:
            graded = book.find_submission_notebook(module, module, student)
            points |= {grade.name: grade.auto_score or 0.0 for grade in graded.grades}
    return Grade(student=student, module=module, points=points, possible=possible, remark=remark)


def make_course(folder: Path, master: Path, arguments: argparse.Namespace) -> Path:
    """A course folder with the module's source, its release and a database."""
    folder.mkdir(exist_ok=True)
    (folder / "nbgrader_config.py").write_text(CONFIG.format(cell_timeout=arguments.cell_timeout))
    write_source(master, folder / "source" / master.stem / f"{master.stem}.ipynb", arguments.seed)
    output = nbgrader(folder, "generate_assignment", master.stem)
    if output.returncode:
        raise GradingError(f"nbgrader could not make {master.stem}: {last_line(output.stderr)}")
    return folder


def nbgrader(course: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run one nbgrader command in a course folder."""
    search = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # it calls alembic
    environment = {**quiet_kernels(), "PATH": search, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    arguments = [sys.executable, "-m", "nbgrader", *command, f"--course-dir={course}"]
    return subprocess.run(
        arguments, cwd=course, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def masters() -> list[Path]:
    """The sources of all modules."""
    return sorted((EXERCISES / "src").glob("[0-9]*.py"))


def submissions(folder: Path, module: str) -> dict[str, Path]:
    """The module's notebook of each student: the one that lies highest in the student's folder."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob(f"{module}.ipynb"), key=lambda path: (-len(path.parts), str(path))):
        inner = path.relative_to(folder).parts
        if len(inner) > 1 and ".ipynb_checkpoints" not in inner:
            found[inner[0]] = path
    return found


def write_csv(grades: Iterable[Grade], target: Path) -> None:
    """One line per student: points, what was possible, points per exercise, a remark."""
    rows = list(grades)
    exercises = list(dict.fromkeys(exercise_of(cell) for cell in rows[0].possible))
    exercises.sort(key=lambda exercise: [int(part) for part in exercise.split(".")])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["student", "module", "points", "of", *exercises, "remark"])
        for row in rows:
            each = [f"{row.of_exercise(exercise):g}" for exercise in exercises]
            total, possible = sum(row.points.values()), sum(row.possible.values())
            table.writerow([row.student, row.module, f"{total:g}", f"{possible:g}", *each, row.remark])


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def grade_all(arguments: argparse.Namespace) -> int:
    """Grade a solved and an untouched submission of every module: all points, and none."""
    bad = 0
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        arguments.folder = Path(folder)
        for master in masters():
            write(solution_copy(master), Path(folder) / "solved" / f"{master.stem}.ipynb")
            write(learner_copy(master), Path(folder) / "untouched" / f"{master.stem}.ipynb")
        for found in grade_folder(arguments):
            total, possible = sum(found.points.values()), sum(found.possible.values())
            wanted = possible if found.student == "solved" else 0
            bad += total != wanted
            print(f"{found.module} {found.student}: {total:g} of {possible:g}, expected {wanted:g} {found.remark}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
