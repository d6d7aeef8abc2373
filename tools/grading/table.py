"""A module's CSV: a row per student, written as soon as it is known, merged into the rows that are there."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tools.exercise_text import exercise_of


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
        each = dict.fromkeys(sorted(map(exercise_of, self.possible), key=by_number), 0.0)
        for cell, points in self.points.items():
            each[exercise_of(cell)] += points
        numbers = {"points": self.total, "of": self.of, **each}
        texts = {name: f"{number:g}" for name, number in numbers.items()}
        return {"student": self.student, "module": self.module, **texts, "remark": self.remark}


@dataclass
class Table:
    """The CSV of one module. Columns that an instructor has added stay."""

    path: Path
    rows: dict[str, dict[str, str]] = field(default_factory=dict)
    new: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.path.exists():
            with self.path.open(newline="") as file:
                self.rows = {row.get("student", ""): row for row in csv.DictReader(file)}

    def add(self, grade: Grade) -> None:
        """Put a student's row in place of an earlier one, and write the file: at any moment it is whole."""
        self.rows[grade.student] = self.rows.get(grade.student, {}) | grade.row()
        self.new.add(grade.student)
        columns = dict.fromkeys([*grade.row(), *(name for row in self.rows.values() for name in row)])
        columns["remark"] = columns.pop("remark")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".unfinished")
        with unfinished.open("w", newline="") as file:
            table = csv.DictWriter(file, list(columns), restval="")
            table.writeheader()
            table.writerows(self.rows[student] for student in sorted(self.rows))
        os.replace(unfinished, self.path)

    def __str__(self) -> str:
        kept = len(self.rows) - len(self.new)
        return f"{self.path}: {len(self.new)} rows written{f', {kept} kept from before' if kept else ''}"


def by_number(exercise: str) -> list[int]:
    """02.10 comes after 02.9."""
    return [int(part) for part in exercise.split(".")]


def read_roster(path: Path | None) -> list[str]:
    """The students of a class, from the column `student` of a CSV.

    Raises: GradingError if there is no such file or column.
    """
    if path is None:
        return []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if "student" in (rows.fieldnames or ()):
                return [row["student"].strip() for row in rows]
        problem = "no column student"
    except OSError as error:
        problem = str(error.strerror)
    raise GradingError(f"ROSTER={path}: {problem}; name a CSV that has a column student")


def unknown(students: Iterable[str], roster: list[str]) -> str:
    """A line that names who is not on the roster; empty if all are, or if there is none."""
    strangers = sorted(set(students) - set(roster)) if roster else []
    return f"not on the roster: {', '.join(strangers)}" if strangers else ""
