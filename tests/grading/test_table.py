"""The CSV of a module: rows are merged by student, and written one by one."""

from __future__ import annotations

import csv
import re

import pytest

from tools.grading.table import Grade, GradingError, Table, read_roster, unknown


def grade(student, points=2.0, remark=""):
    cells = {"02-1-values": points, "02-10-bytes": 0.5, "02-9-edges": 0.0, "02-1-bytes": 1.0}
    return Grade(student=student, module="02", points=cells, possible=dict.fromkeys(cells, 2.0), remark=remark)


def table_at(path):
    return Table(path, ["02.1", "02.9", "02.10"])


def rows(path):
    with path.open(encoding="utf-8-sig") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def test_a_row_has_the_points_of_each_exercise(tmp_path):
    table = table_at(tmp_path / "grades" / "02.csv")
    table.add(grade("ann", remark="2 notebooks"))
    lines = (tmp_path / "grades" / "02.csv").read_text("utf-8-sig").splitlines()
    assert lines == ["student,module,points,of,02.1,02.9,02.10,remark", "ann,02,3.5,8,3,0,0.5,2 notebooks"]
    assert str(table).endswith("02.csv: 1 rows written")


def test_regrading_one_student_keeps_the_class(tmp_path):
    path = tmp_path / "02.csv"
    for student in ("cho", "ann"):
        table_at(path).add(grade(student))
    path.write_text(path.read_text("utf-8-sig").replace("remark", "remark,comment").replace(",0.5,", ",0.5,,well done"))
    table = table_at(path)
    table.add(grade("ann", points=0.0, remark="late"))
    found = rows(path)
    assert [(name, row["points"], row["remark"], row["comment"]) for name, row in found.items()] == [
        ("ann", "1.5", "late", "well done"),
        ("cho", "3.5", "", "well done"),
    ]
    assert str(table).endswith("02.csv: 1 rows written, 1 kept from before")


def test_each_row_is_on_disk_before_the_next(tmp_path):
    table = table_at(tmp_path / "02.csv")
    for number, student in enumerate(["ann", "ben", "cho"], 1):
        table.add(grade(student))
        assert len(rows(tmp_path / "02.csv")) == number
    assert [path.name for path in tmp_path.iterdir()] == ["02.csv"]


def test_a_roster_names_the_class(tmp_path):
    path = tmp_path / "class.csv"
    path.write_text("\ufeffstudent,id\nann,1\n ben ,2\n")
    assert read_roster(path) == ["ann", "ben"]
    assert unknown(["zoe", "ann"], ["ann", "ben"]) == "not on the roster: zoe"
    assert unknown(["zoe"], []) == "" and read_roster(None) == []


@pytest.mark.parametrize("text", [None, "name\nann\n", ""])
def test_a_roster_without_students_is_one_line(tmp_path, text):
    path = tmp_path / "class.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(
        GradingError, match=rf"^ROSTER={re.escape(str(path))}: .*; name a CSV that has a column student$"
    ):
        read_roster(path)
