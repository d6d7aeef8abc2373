"""Points go into what Canvas and Moodle have exported and come out again; no other cell changes."""

from __future__ import annotations

import csv
import io

import pytest

from tools.grading.__main__ import main
from tools.grading.gradebooks import Points, plain_of, read_gradebook
from tools.grading.sheet import SheetError
from tools.grading.table import Grade, Table, read_roster

MODULE = "02_collectives"
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,01_why_distributed (4),02_collectives (9)
    Points Possible,,,,,40,20
"Lee, Ann",77,x1,ann,A,31,
"=Cho, Bo",78,x2,bo,A,,
"""
MOODLE = """\ufeffIdentifier;Full name;Email address;Status;Grade;Maximum grade;Grade can be changed;Feedback comments
Participant 77;Ann Lee;ann@here;Submitted for grading;-;100,00;Yes;"Look; at 02.3"
Participant 78;Bo Cho;bo@here;No submission;-;100,00;Yes;
"""
PLAIN = "Student,group\nann,A\nbo,B\n"
BOOKS = {  # the export, the names of its two students, and what 30 of 40 points are in it
    "canvas": (CANVAS, ("leeann_77", "chobo_78"), 15),
    "moodle": (MOODLE, ("Ann Lee_77", "Bo Cho_78"), 75),
    "plain": (PLAIN, ("ann", "bo"), 30),
}


def rows_of(content, separator):
    return [*csv.reader(io.StringIO(content.decode().removeprefix("\ufeff")), delimiter=separator)]


@pytest.mark.parametrize("kind", BOOKS)
def test_points_go_in_and_come_out_again(kind):
    text, (ann, bo), shown = BOOKS[kind]
    book = read_gradebook(text.encode())
    assert book.kind == kind and [student for student, _ in book.students()] == [ann, bo]
    strangers = book.fill({ann: Points(30, 40), "zoe": Points(1, 40)}, MODULE)
    assert strangers == ["zoe"]
    again = read_gradebook(book.content()).points(MODULE)
    assert {student: one.points for student, one in again.items()} == {ann: shown}
    assert again[ann].points / again[ann].of == 30 / 40


@pytest.mark.parametrize("kind", BOOKS)
def test_no_other_cell_changes(kind):
    text, (ann, _), _ = BOOKS[kind]
    book = read_gradebook(text.encode())
    before, width = rows_of(text.encode(), book.separator), len(book.columns)
    book.fill({ann: Points(30, 40)}, MODULE)
    after = rows_of(book.content(), book.separator)
    changed = [
        (old[0], name)
        for old, new in zip(before, after, strict=True)
        for name, one, other in zip(before[0], old, new[:width], strict=True)
        if one != other
    ]
    assert changed == {"canvas": [("Lee, Ann", "02_collectives (9)")], "moodle": [("Participant 77", "Grade")]}.get(
        kind, []
    )


def test_canvas_gets_a_column_with_what_is_possible():
    book = read_gradebook(CANVAS.encode())
    book.fill({"leeann_77": Points(12.5, 30)}, "03_mlp_ddp")
    assert [row[-1] for row in rows_of(book.content(), ",")] == ["03_mlp_ddp", "30", "12.5", ""]


def test_a_plain_table_is_a_roster_too(tmp_path):
    path = tmp_path / "class.csv"
    path.write_bytes(plain_of({"bo": Points(1, 2), "ann": Points(2 / 3, 2)}).content())
    assert path.read_text().splitlines() == ["student,points,of", "ann,0.67,2", "bo,1,2"]
    assert read_roster(path) == ["ann", "bo"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,points\nann,3\n", "its headings are not those of Canvas"),
        ("", "its headings are not those of Canvas"),
        ("student,points\nann,3,4\n", "more cells than there are headings"),
        ("student,points\nann,1st January\n", "ann has '1st January' in the column points, which is no number"),
        ("student,group\nann,A\n", "no column for 02_collectives"),
    ],
)
def test_what_is_not_understood_is_refused(text, said):
    with pytest.raises(SheetError, match=said):
        read_gradebook(text.encode()).points(MODULE)


def test_make_gradebook_writes_a_copy_and_names_who_is_missing(tmp_path, capsys):
    table = Table(tmp_path / f"grades/{MODULE}.csv", ["02.1"])
    for student, points in (("Ann Lee_77", 3.0), ("Zoe_79", 1.0)):
        table.add(Grade(student=student, module=MODULE, points={"02-1-x": points}, possible={"02-1-x": 4.0}))
    (tmp_path / "worksheet.csv").write_text(MOODLE)
    assert main("gradebook", str(tmp_path / "worksheet.csv"), "02", f"--out={tmp_path}") == 0
    said = capsys.readouterr().out
    assert "02_collectives.to_moodle.csv: 1 rows with points\nnot in worksheet.csv: Zoe_79\n" in said
    filled = tmp_path / f"grades/{MODULE}.to_moodle.csv"
    assert main("gradebook", str(filled), "02", "--back", f"--out={tmp_path}") == 0
    assert (tmp_path / f"grades/{MODULE}.from_moodle.csv").read_text().splitlines()[1:] == ["Ann Lee_77,75,100"]
    assert main("gradebook", str(tmp_path / "none.csv"), "02", f"--out={tmp_path}") == 1
    assert main("gradebook", str(filled), "99", f"--out={tmp_path}") == 1
    assert "make gradebook: BOOK=" in capsys.readouterr().err
