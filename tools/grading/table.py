"""A module's CSV: a row per student, written as soon as it is known, merged into the rows that are there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tools.exercise_text import exercise_of
from tools.grading.sheet import NUMBER, SheetError, read_sheet, sheet, write_whole

OURS = ("student", "module", "points", "of", "remark")
POSSIBLE = "Points Possible"  # Canvas' second line, in the column of the students


class GradingError(Exception):
    """Something an instructor can mend, in one line."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """Points of one submission by graded cell; `remark` says what went wrong outside the exercises."""

    student: str
    module: str
    points: dict[str, float]
    possible: dict[str, float]
    remark: str = ""

    @property
    def total(self) -> float:
        return sum(self.points.values())

    @property
    def of(self) -> float:
        return sum(self.possible.values())

    def row(self) -> dict[str, str]:
        """Points, what was possible, points of each exercise, the remark."""
        each = dict.fromkeys(exercises_of(self.possible), 0.0)
        for cell, points in self.points.items():
            each[exercise_of(cell)] += points
        numbers = {"points": self.total, "of": self.of, **each}
        texts = {name: f"{number:g}" for name, number in numbers.items()}
        return {"student": self.student, "module": self.module, **texts, "remark": self.remark}


@dataclass
class Table:
    """The CSV of one module. Columns that an instructor has added stay, and what was there before lies beside it.

    Raises: GradingError if the file that is there is not understood; nothing has been written then.
    """

    path: Path
    exercises: Sequence[str]  # the headings that a spreadsheet may have taken for numbers
    rows: dict[str, dict[str, str]] = field(default_factory=dict)
    new: set[str] = field(default_factory=set)
    _columns: list[str] = field(default_factory=list)
    _on_disk: bytes | None = None
    _changed: bool = False

    def __post_init__(self) -> None:
        self.path = self.path.resolve()  # a link stays one
        if not self.path.exists():
            return
        try:
            self._on_disk = self.path.read_bytes()
            named = partial(names_before_a_spreadsheet, exercises=self.exercises)
            self._columns, rows = read_sheet(self._on_disk, named)
            for row in rows:
                if row["student"] in self.rows:
                    raise SheetError(f"{row['student']} has two rows")
                self.rows[row["student"]] = with_numbers(row, self.exercises)
        except (SheetError, OSError) as error:
            raise GradingError(
                f"{self.path}: {error}; mend it, or put it elsewhere and a new one is made (it is as it was)"
            ) from error

    def add(self, grade: Grade) -> None:
        """Put a student's row in place of an earlier one, and write the file: at any moment it is whole."""
        self.rows[grade.student] = self.rows.get(grade.student, {}) | grade.row()
        columns = dict.fromkeys([*grade.row(), *self._columns])
        columns["remark"] = columns.pop("remark")
        self._keep()
        students = sorted(self.rows, key=lambda student: (student != POSSIBLE, student))
        self._on_disk = sheet(list(columns), [self.rows[student] for student in students])
        write_whole(self.path, self._on_disk)
        self.new.add(grade.student)

    def _keep(self) -> None:
        """Put beside the file what it was before, and what somebody else has made of it meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        found = self.path.read_bytes() if self.path.exists() else None
        if found is not None and not self.new:
            write_whole(self.path.with_suffix(".before.csv"), found)
        if found is not None and found != self._on_disk:
            self._changed = True
            write_whole(self.path.with_suffix(".changed.csv"), found)

    def __str__(self) -> str:
        kept = len(self.rows) - len(self.new)
        said = f"{self.path}: {len(self.new)} rows written{f', {kept} kept from before' if kept else ''}"
        other = self.path.with_suffix(".changed.csv").name
        return f"{said}; somebody changed it meanwhile, which is in {other}" if self._changed else said


def exercises_of(cells: Iterable[str]) -> list[str]:
    """The exercises of graded cells; 02.10 comes after 02.9."""
    return sorted({exercise_of(cell) for cell in cells}, key=lambda key: [int(part) for part in key.split(".")])


def names_before_a_spreadsheet(columns: list[str], exercises: Sequence[str]) -> list[str]:
    """Our name of each column: spreadsheets read 02.1 and 02.10 as the number 2.1, and some as a day in January.

    Raises: SheetError if an exercise's column cannot be told.

    >>> names_before_a_spreadsheet(["Student", "2.1", "2,1"], ["02.1", "02.10"])
    ['student', '02.1', '02.10']
    """
    names = [name.lower() if name.lower() in OURS else name for name in columns]
    for place, name in enumerate(names):
        if name not in exercises and re.fullmatch(r"\d+[.,]\d+", name):
            same = (one for one in exercises if one not in names and float(one) == float(name.replace(",", ".")))
            names[place] = next(same, name)
    missing = [one for one in exercises if one not in names]
    ours = [place for place, name in enumerate(names) if name in ("of", "remark")]
    between = names[min(ours, default=0) : max(ours, default=0)]
    strange = [name for name in between if re.search(r"\d", name) and name not in exercises]
    if missing and strange:
        raise SheetError(f"a spreadsheet has changed the heading {missing[0]}, perhaps to {strange[0]}")
    return names


def with_numbers(row: dict[str, str], exercises: Sequence[str]) -> dict[str, str]:
    """A row whose points are numbers, with a point in them.

    Raises: SheetError if one is none, because a spreadsheet took it for a date.
    """
    found = dict(row)
    for name in ("points", "of", *exercises):
        if text := row.get(name, ""):
            if not NUMBER.fullmatch(text):
                raise SheetError(f"{row['student']} has {text!r} in the column {name}, which is no number of points")
            found[name] = text.replace(",", ".")
    return found


def read_roster(path: Path | None) -> list[str]:
    """The students of a class, from the column `student` of a CSV; those of Canvas by the names of their files.

    Raises: GradingError if there is no such file or column.
    """
    if path is None:
        return []
    try:
        columns, rows = read_sheet(path.read_bytes())
    except (SheetError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise GradingError(f"ROSTER={path}: {reason}; name a CSV that has a column student") from error
    rows = [row for row in rows if row["student"] != POSSIBLE]
    return [canvas_name(row) if {"ID", "Section"} <= set(columns) else row["student"] for row in rows]


def canvas_name(row: dict[str, str]) -> str:
    """The student's part of the file names in Canvas' download.

    >>> canvas_name({"student": "Lee, Ann", "ID": "77"})
    'leeann_77'
    """
    return re.sub(r"\W|_", "", row["student"]).lower() + f"_{row['ID']}"


def unknown(students: Iterable[str], roster: list[str]) -> str:
    """A line that names who is not on the roster; empty if all are, or if there is none."""
    strangers = sorted(set(students) - set(roster)) if roster else []
    return f"not on the roster: {', '.join(strangers)}" if strangers else ""
