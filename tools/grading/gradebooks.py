"""Points into the file that Moodle or Canvas has exported, so that it can be imported again, and points out of it.

    kind    known by its headings                       a student of ours is          its points stand in
    canvas  Student, ID, Section                        leeann_77                     the module's column, or a new one
    moodle  Identifier, Full name (a grading worksheet) Ann Lee_77                    Grade, of Maximum grade
    plain   student                                     as it is                      points, of

Cells that are not about points stay as they were, to the letter: what comes back must be what was exported.
Source: Canvas, "How do I import grades in the Gradebook"; Moodle 4, Assignment, "Offline marking".
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tools.grading.names import readable
from tools.grading.sheet import NUMBER, SEPARATORS, SheetError, text_of
from tools.grading.table import POSSIBLE, canvas_name

_KINDS = {"canvas": ("student", "id", "section"), "moodle": ("identifier", "full name"), "plain": ("student",)}
_PARTICIPANT = re.compile(r"\D*(?P<number>\d+)\D*")


class Points(NamedTuple):
    """What a student has, and what was possible."""

    points: float
    of: float


@dataclass
class Gradebook:
    """A table of another system: its kind, its headings, and its rows, all cells as they were."""

    kind: str
    columns: list[str]
    rows: list[list[str]]
    separator: str = ","

    def students(self) -> Iterator[tuple[str, list[str]]]:
        """Each student's name as the folder of submissions has it, and the row."""
        for row in self.rows:
            named = {"student": self._cell(row, "student"), "ID": self._cell(row, "id")}
            if self.kind == "moodle":
                number = _PARTICIPANT.fullmatch(self._cell(row, "identifier"))
                yield readable(f"{self._cell(row, 'full name')}_{number['number'] if number else ''}"), row
            elif named["student"].strip() not in (POSSIBLE, ""):
                yield canvas_name(named) if self.kind == "canvas" else readable(named["student"]), row

    def fill(self, found: Mapping[str, Points], module: str) -> list[str]:
        """Write the points of all students that are in the table; return those that were found and are not in it."""
        place, of = self._places(module, next(iter(found.values())).of if found else 0)
        there = set()
        for student, row in self.students():
            if student in found:
                there.add(student)
                row[place] = _number(found[student].points * self._scale(row, of, found[student].of))
                if self.kind == "plain":
                    row[of] = _number(found[student].of)
        return sorted(found.keys() - there)

    def points(self, module: str) -> dict[str, Points]:
        """The points that stand in it, of all students that have any.

        Raises: SheetError if the module has no column, or a cell is no number.
        """
        place = self._column_of(module)
        if place is None:
            raise SheetError(f"no column for {module}")
        found = {}
        for student, row in self.students():
            if (text := row[place].strip()) in ("", "-"):
                continue
            if not NUMBER.fullmatch(text):
                raise SheetError(f"{student} has {text!r} in the column {self.columns[place]}, which is no number")
            found[student] = Points(float(text.replace(",", ".")), self._possible(row, place))
        return found

    def content(self) -> bytes:
        """The table as a file, with the separator and the headings that it had."""
        file = io.StringIO(newline="")
        csv.writer(file, delimiter=self.separator).writerows([self.columns, *self.rows])
        return file.getvalue().encode("utf-8")

    def _places(self, module: str, of: float) -> tuple[int, int]:
        """The columns of the points and of what is possible; they are added where there are none."""
        place = self._column_of(module)
        if place is None:
            place = self._add("points" if self.kind == "plain" else module)
            for row in self.rows:
                if self.kind == "canvas" and self._cell(row, "student").strip() == POSSIBLE:
                    row[place] = _number(of)
        if self.kind == "plain" and "of" not in self.columns:
            self._add("of")
        return place, self.columns.index("of") if self.kind == "plain" else place

    def _column_of(self, module: str) -> int | None:
        """Where a module's points stand: in Canvas a heading has an assignment's name, with its number behind it."""
        wanted = {"moodle": "grade", "plain": "points"}.get(self.kind, module.lower())
        names = [re.sub(r" \(\d+\)$", "", name.lower()) for name in self.columns]
        return names.index(wanted) if wanted in names else None

    def _add(self, name: str) -> int:
        self.columns.append(name)
        for row in self.rows:
            row.append("")
        return len(self.columns) - 1

    def _scale(self, row: list[str], place: int, of: float) -> float:
        """By what points are multiplied: the other system may count to another number."""
        possible = self._possible(row, place)
        return possible / of if self.kind != "plain" and possible and of else 1.0

    def _possible(self, row: list[str], place: int) -> float:
        """What is possible in a column, as the other system says; 0 if it does not."""
        if self.kind == "canvas":
            row = next((one for one in self.rows if self._cell(one, "student").strip() == POSSIBLE), [""] * (place + 1))
            text = row[place].strip()
        else:
            text = self._cell(row, "maximum grade" if self.kind == "moodle" else "of").strip()
        return float(text.replace(",", ".")) if NUMBER.fullmatch(text) else 0.0

    def _cell(self, row: list[str], name: str) -> str:
        names = [one.lower() for one in self.columns]
        return row[names.index(name)] if name in names else ""


def read_gradebook(content: bytes) -> Gradebook:
    """The table of an export, of whichever kind its headings say.

    Raises: SheetError if it is none of the three kinds, or a line has more cells than there are headings.
    """
    text = text_of(content).removeprefix("\ufeff")
    for separator in SEPARATORS:
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if any(line)]
        names = {name.strip().lower() for name in lines[0]} if lines else set()
        kind = next((kind for kind, needed in _KINDS.items() if names >= {*needed}), None)
        if kind is not None:
            columns, *rows = lines
            if any(len(row) > len(columns) for row in rows):
                raise SheetError("a line has more cells than there are headings")
            padded = [row + [""] * (len(columns) - len(row)) for row in rows]
            return Gradebook(kind, [name.strip() for name in columns], padded, separator)
    raise SheetError("its headings are not those of Canvas (Student, ID, Section), of Moodle's worksheet, or student")


def plain_of(found: Mapping[str, Points]) -> Gradebook:
    """A plain table of these students, as `make grade` takes it for a roster, too."""
    rows = [[student, _number(one.points), _number(one.of)] for student, one in sorted(found.items())]
    return Gradebook("plain", ["student", "points", "of"], rows)


def _number(value: float) -> str:
    """Points with two digits behind the point, as these systems keep them, and without zeros at the end.

    >>> _number(7.0), _number(2 / 3)
    ('7', '0.67')
    """
    return f"{round(value, 2):g}"
