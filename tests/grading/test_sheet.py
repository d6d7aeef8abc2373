"""A table of grades comes back from a spreadsheet in many forms: each keeps the class, or is refused whole."""

from __future__ import annotations

import codecs
import csv
import os

import pytest

from tools.grading import sheet as sheets
from tools.grading.sheet import harmless, plain, read_sheet, sheet
from tools.grading.table import Grade, GradingError, Table, read_roster

EXERCISES = ["02.1", "02.9", "02.10"]
LINES = [
    ["student", "module", "points", "of", "02.1", "02.9", "02.10", "comment", "remark"],
    ["Jürgen", "02", "3.5", "8", "3", "0", "0.5", "gut; weiter", ""],
    ["Zoë O'Neil", "02", "1", "8", "1", "0", "0", "", "late"],
]


def text(separator=",", lines=LINES, end="\r\n"):
    return "".join(separator.join(f'"{c}"' if set(c) & set('",;\t|\n') else c for c in line) + end for line in lines)


def with_heading(*names):
    return text(lines=[[dict(zip(LINES[0], names, strict=True)).get(name, name) for name in LINES[0]], *LINES[1:]])


def excel_german():
    numbers = [[cell.replace(".", ",") if cell[:1].isdigit() else cell for cell in line] for line in LINES[1:]]
    return text(";", [["student", "module", "points", "of", "2,1", "2,9", "2,10", "comment", "remark"], *numbers])


FORMS = {
    "our own": sheet(LINES[0], [dict(zip(LINES[0], line, strict=True)) for line in LINES[1:]]),
    "UTF-8 without a mark": text().encode(),
    "Excel's CSV UTF-8": text().encode("utf-8-sig"),
    "Excel's CSV in Germany": excel_german().encode("cp1252"),
    "Latin-1": text().encode("latin-1"),
    "Excel's Unicode text": text("\t").encode("utf-16"),
    "UTF-16, the other order": codecs.BOM_UTF16_BE + text("\t").encode("utf-16-be"),
    "UTF-16 without a mark": text(";").encode("utf-16-le"),
    "a bar": text("|").encode(),
    "its separator in the first line": ("sep=;\r\n" + text(";")).encode(),
    "line ends of Unix": text(end="\n").encode(),
    "line ends of old Macs": text(end="\r").encode(),
    "headings in other letters": with_heading("Student", "MODULE", "Points", "Of", *LINES[0][4:8], "Remark").encode(),
    "headings as numbers": with_heading(*LINES[0][:4], "2.1", "2.9", "2.1", "comment", "remark").encode(),
    "quoted whole": "\n".join(";".join(f'"{cell}"' for cell in line) for line in LINES).encode(),
    "empty lines": (text() + ",,,,,,,,\r\n\r\n").encode(),
    "no empty cells at the ends": text(lines=[*LINES[:1], LINES[1][:8], LINES[2]]).encode(),
    "a column without a heading": text(lines=[[*line, ""] for line in LINES]).encode(),
}


def grade(student):
    cells = {"02-1-values": 2.0, "02-9-edges": 1.0, "02-10-bytes": 0.0}
    return Grade(student=student, module="02", points=cells, possible=dict.fromkeys(cells, 2.0))


@pytest.mark.parametrize("form", FORMS)
def test_grading_one_again_keeps_the_class_in_any_form(tmp_path, form):
    path = tmp_path / "02.csv"
    path.write_bytes(FORMS[form])
    table = Table(path, EXERCISES)
    table.add(grade("Jürgen"))
    with path.open(encoding="utf-8-sig", newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["student", "module", "points", "of", *EXERCISES, "comment", "remark"]
    assert [list(row.values()) for row in found] == [
        ["Jürgen", "02", "3", "6", "2", "1", "0", "gut; weiter", ""],
        LINES[2],
    ]
    assert str(table).endswith("02.csv: 1 rows written, 1 kept from before")
    assert (tmp_path / "02.before.csv").read_bytes() == FORMS[form]


REFUSED = {
    "a workbook": (b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0", "no column student"),
    "other headings": (b"Name,Points\nann,3\n", "no column student"),
    "empty": (b"", "no column student"),
    "another encoding": ("student,points\nd’Arcy\x81\n".encode("latin-1", "replace") + b"\x81\n", "no encoding"),
    "more cells than headings": (b"student,points\nann,1,7\n", "line 2 has a cell in a column without a heading"),
    "no student": (b"student,points\nann,1\n,4\n", "line 3 has cells, but no student"),
    "a student twice": (b"student,points\nann,1\nann,2\n", "ann has two rows"),
    "a column twice": (b"student,points,Points\nann,1,2\n", "the column points is there twice"),
    "a day for points": (b"student,points\nann,03. Mai\n", "ann has '03. Mai' in the column points, which is no"),
    "a day for an exercise": (b"student,of,02. Jan,remark\nann,1,1,\n", "heading 02.1, perhaps to 02. Jan"),
    "an open quote": (b'student,points\nann,"1\n', "line 2 is broken: unexpected end of data"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_whole(tmp_path, case):
    content, reason = REFUSED[case]
    path = tmp_path / "02.csv"
    path.write_bytes(content)
    with pytest.raises(GradingError, match=r"^\S+/02\.csv: .*; mend it, or put it elsewhere") as caught:
        Table(path, EXERCISES)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("02.csv", content)]


@pytest.mark.parametrize(
    "cell",
    ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "=cmd|' /C calc'!A1", "'=1", "''=1", "\uff1d1", "a;=1", "b\t@c", "x, +1+1"],
)
def test_a_cell_that_a_spreadsheet_would_compute_is_text_and_comes_back(cell):
    for separator in ",;\t":
        parts = harmless(cell).split(separator)
        assert not [part for part in parts if part.strip()[:1] in tuple("=+-@\uff1d")]
    assert plain(harmless(cell)) == cell
    _, rows = read_sheet(sheet(["student", cell], [{"student": cell, cell: cell}]))
    assert rows == [{"student": cell.replace("\t", "\\x09"), cell: cell}]


@pytest.mark.parametrize("cell", ["-2", "+1.5", "3,5", "ann", "O'Neil", "a-b", "a=b", ""])
def test_other_cells_stay_as_they_are(cell):
    assert harmless(cell) == plain(cell) == cell


def test_an_interrupted_write_leaves_the_last_table(tmp_path, monkeypatch):
    path = tmp_path / "02.csv"
    Table(path, EXERCISES).add(grade("ann"))
    whole = path.read_bytes()
    for step in ("replace", "fsync"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no room"):
            patch.setattr(sheets.os, step, lambda *words: (_ for _ in ()).throw(OSError("no room")))
            Table(path, EXERCISES).add(grade("ben"))
        assert path.read_bytes() == whole


def test_what_another_program_saves_meanwhile_is_kept_beside_and_told(tmp_path):
    table = Table(tmp_path / "02.csv", EXERCISES)
    table.add(grade("ann"))
    (tmp_path / "02.csv").write_bytes(b"student\nzoe\n")
    table.add(grade("ben"))
    assert (tmp_path / "02.changed.csv").read_bytes() == b"student\nzoe\n"
    assert str(table).endswith("2 rows written; somebody changed it meanwhile, which is in 02.changed.csv")
    assert list(Table(tmp_path / "02.csv", EXERCISES).rows) == ["ann", "ben"]


def test_the_rights_and_the_link_of_a_table_stay(tmp_path):
    (tmp_path / "shared").mkdir()
    table = tmp_path / "shared" / "02.csv"
    table.write_text("student\nann\n")
    table.chmod(0o640)
    (tmp_path / "02.csv").symlink_to(table)
    Table(tmp_path / "02.csv", EXERCISES).add(grade("ben"))
    assert (tmp_path / "02.csv").is_symlink() and list(Table(table, EXERCISES).rows) == ["ann", "ben"]
    assert os.stat(table).st_mode & 0o777 == 0o640


CANVAS = (
    '"Student","ID","SIS Login ID","Section","Essay (12)"\n"    Points Possible","","","","10"\n'
    '"Lee, Ann","77","lee","A","9"\n"O\'Neil, Zoë","78","zoe","A",""\n'
)


def test_the_gradebook_of_canvas_is_a_roster_and_keeps_its_second_line(tmp_path):
    path = tmp_path / "canvas.csv"
    path.write_text(CANVAS, encoding="utf-8-sig")
    assert read_roster(path) == ["leeann_77", "oneilzoë_78"]
    Table(path, EXERCISES).add(grade("ben"))
    lines = path.read_text("utf-8-sig").splitlines()
    assert lines[1].startswith("Points Possible,") and len(lines) == 5
