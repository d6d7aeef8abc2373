"""Faults in submissions: a class is graded once; each costs its student what it spoils, and nobody else a point."""

from __future__ import annotations

import csv
import re
import sys
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos.line import Line, Seen
from tests.chaos.scene import Scene

PART = "grader"
CELL_S = 5
LINK, LAST = "link", "whole"  # whole is graded last, after all that could spoil its points
LINES = (  # student, fault, what was done, what is said, which of the student's exercises it costs
    ("loops", "endless loop", f"a cell loops, another one swallows interrupts; limit {CELL_S} s", "", "02.5, 02.9"),
    ("exits", "kernel exit", "a cell ends its kernel", "", "02.3"),
    ("vandal", "surviving processes", "a cell starts processes in sessions of their own", "", "02.5"),
    ("vandal", "writes to the template", "a cell looks for a gradebook and sets the points to 0", "", "02.5"),
    ("thief", "solutions reached", "a cell looks for the solutions in every folder above", "", "02.3"),
    ("stops", "SIGSTOP", "a cell stops the program that runs it", "", "nothing"),
    ("kills", "SIGKILL", "a cell kills the program that runs it", "", "02.5"),
    ("doubled", "duplicated ids", "all cells twice, then the stubs; the answers first", "", "nothing"),
    ("bytes", "name of other bytes", "the folder's name is in Latin-1", r"bytes-\\xfc: 26 of 26", "nothing"),
    (LINK, "link", "the notebook is a symbolic link to the solutions", "not taken, it is a symbolic link", "no row"),
)


def lines() -> Iterator[Line]:
    """All lines of this part."""
    for student, fault, done, said, costs in LINES:
        yield Line(
            part=PART,
            fault=fault,
            done=done,
            do=partial(_of_student, student),
            said=said or rf"{student}: \d+ of 26, \d+ s$",
            lost=costs if costs == "no row" else f"{costs} of its own",
            within_s=120.0,
        )
    yield Line(
        part=PART,
        fault="spreadsheet",
        done="the table comes back as Excel saves it in Germany",
        do=_saved_by_a_spreadsheet,
        said="02.csv: 1 rows written, 1 kept from before$",
        lost="nothing",
        within_s=5.0,
    )


def _saved_by_a_spreadsheet(folder: Path) -> Seen:
    from tools.grading.table import Grade, Table

    path, started = folder / "02.csv", time.monotonic()
    path.write_text("Student;Points;2,1\nann;1,5;1,5\nZoë;1;1\n", encoding="cp1252")
    table = Table(path, ["02.1"])
    table.add(Grade(student="ann", module="02", points={"02-1-values": 2.0}, possible={"02-1-values": 2.0}))
    points = {student: row["02.1"] for student, row in Table(path, ["02.1"]).rows.items()}
    lost = "nothing" if points == {"ann": "2", "Zoë": "1"} else f"the class, but for {points}"
    return Seen(said=str(table), seconds=time.monotonic() - started, lost=lost)


def _of_student(student: str, folder: Path) -> Seen:
    said, rows, left = _graded()
    student = next((name for name in rows if name.startswith(student)), student)
    line = next((text for text in said.splitlines() if re.search(rf"\b{re.escape(student)}\b", text)), said)
    seconds = re.search(r", (\d+) s", line)
    lost = _lost(rows[student], rows[LAST]) + " of its own" if student in rows else "no row"
    if rows[LAST]["points"] != rows[LAST]["of"]:
        lost += ", points of others"
    return Seen(said=line, seconds=float(seconds[1]) if seconds else 0.0, lost=lost, left=left)


def _lost(row: dict[str, str], whole: dict[str, str]) -> str:
    exercises = [name for name in row if re.fullmatch(r"\d\d\.\d+", name)]
    return ", ".join(name for name in exercises if float(row[name]) < float(whole[name])) or "nothing"


@cache
def _graded() -> tuple[str, dict[str, dict[str, str]], int]:
    """What `make grade` said of the class, its rows, and how many processes of the submissions are left."""
    with TemporaryDirectory(prefix="chaos-") as name:
        scene = Scene(Path(name))
        output, errors = scene.start(__file__, name).communicate(timeout=600)
        left = scene.left() + _asleep()
        with next(scene.folder.glob("out/grades/*.csv")).open(encoding="utf-8-sig") as file:
            return output + errors, {row["student"]: row for row in csv.DictReader(file)}, left


def _asleep() -> int:
    """Processes of the vandal: the environment that marks all others is not handed on to submissions."""
    from tests.grading.test_nbgrader_roundtrip import SLEEP_S

    time.sleep(0.5)
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes())
        except OSError:
            continue
    return commands.count(f"sleep\0{SLEEP_S}\0".encode())


def _main(name: str) -> int:
    """In a program of its own: hand in the class and grade it."""
    import os

    import nbformat

    from tests.grading import test_nbgrader_roundtrip as roundtrip
    from tests.grading import test_resilience as resilience
    from tools.exercise_text import solution_copy
    from tools.grading import __main__ as grading
    from tools.paths import ROOT

    folder = Path(name)
    master = roundtrip.small_module(folder)
    vandal = roundtrip.VANDAL % (roundtrip.SLEEP_S, roundtrip.SLEEP_S)
    class_ = {
        "loops": roundtrip.solved_but(master, c02_5=roundtrip.KERNEL_LOOP, c02_9=roundtrip.STUBBORN),
        "exits": roundtrip.solved_but(master, c02_3=roundtrip.KERNEL_EXIT),
        "vandal": roundtrip.solved_but(master, c02_5=vandal),
        "thief": roundtrip.solved_but(master, c02_3=roundtrip.THIEF),
        "stops": resilience.with_answer(master, resilience.ABOVE.format("SIGSTOP"), where="02-5"),
        "kills": resilience.with_answer(master, resilience.ABOVE.format("SIGKILL"), where="02-5"),
        "doubled": resilience.doubled(master),
        os.fsdecode(b"bytes-\xfc"): solution_copy(master),
        LAST: solution_copy(master),
    }
    for student, notebook in class_.items():
        path = folder / "class" / student / f"{roundtrip.MODULE}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(nbformat.writes(notebook))
    link = folder / "class" / LINK / f"{roundtrip.MODULE}.ipynb"
    link.parent.mkdir()
    link.symlink_to(ROOT / "exercises" / "solutions" / link.name)
    grading.masters = lambda: {roundtrip.MODULE: master}
    return grading.main("grade", str(folder / "class"), f"--out={folder / 'out'}", f"--cell-timeout={CELL_S}")


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
