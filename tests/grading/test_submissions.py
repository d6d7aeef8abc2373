"""What was handed in under which name: every file becomes a submission or a line that says why not."""

from __future__ import annotations

import os

import pytest

from tools.grading.names import file_name
from tools.grading.submissions import find_submissions

MODULES = ["01_why_distributed", "02_collectives"]


def hand_in(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("ann/02_collectives.ipynb", "ann"),
        ("ann/week 2/02_collectives.ipynb", "ann"),
        ("ann/02_collectives (1).ipynb", "ann"),
        ("ann/02_collectives-Copy1.ipynb", "ann"),
        ("ann/Copy of 02_Collectives.ipynb", "ann"),
        ("Ann Lee_77_assignsubmission_file_/02_collectives.ipynb", "Ann Lee_77"),
        ("smithjohn_12345_678_02_collectives.ipynb", "smithjohn_12345"),
        ("smithjohn_LATE_12345_678_02_collectives-1.ipynb", "smithjohn_12345"),
        ("ann_02_collectives.ipynb", "ann"),
    ],
)
def test_names_as_browsers_moodle_and_canvas_make_them(tmp_path, name, student):
    hand_in(tmp_path, name)
    found, lines = find_submissions(tmp_path, MODULES)
    assert [(one.student, one.module, one.path) for one in found] == [(student, "02_collectives", tmp_path / name)]
    assert [one.remark for one in found] == [""] and lines == []


def test_what_is_not_taken_is_named_with_its_reason(tmp_path):
    hand_in(tmp_path, "ann/02_collectives.ipynb", "ben/report.pdf", "cho/all.zip", "dan/homework.ipynb")
    hand_in(tmp_path, "02_collectives.ipynb", "ann/.ipynb_checkpoints/02_collectives.ipynb", "__MACOSX/x.ipynb")
    (tmp_path / "eve").mkdir()
    (tmp_path / "fay").mkdir()
    (tmp_path / "fay" / "02_collectives.ipynb").symlink_to(tmp_path / "ann" / "02_collectives.ipynb")
    (tmp_path / "gus").symlink_to(tmp_path / "ann")
    os.mkfifo(tmp_path / "ann" / "02_collectives (2).ipynb")
    found, lines = find_submissions(tmp_path, MODULES)
    assert [(one.student, one.remark) for one in found] == [("ann", "")]
    name = f"its name should contain that of its module, one of {', '.join(MODULES)}"
    assert lines == [
        "02_collectives.ipynb: not taken, it does not say whose it is: put it into a folder with its student's name",
        "gus: not taken, it is a symbolic link: only the file itself counts",
        "ann/02_collectives (2).ipynb: not taken, it is no plain file",
        "ben/report.pdf: not taken, it is no notebook (.ipynb)",
        "cho/all.zip: not taken, it is no notebook (.ipynb): unpack it",
        f"dan/homework.ipynb: not taken, {name}",
        "eve: not taken, it is an empty folder",
        "fay/02_collectives.ipynb: not taken, it is a symbolic link: only the file itself counts",
        *(f"{name}: no notebook of the course in this folder" for name in ("ben", "cho", "dan", "fay")),
    ]


def test_of_two_notebooks_the_row_says_which_one_counts(tmp_path):
    hand_in(tmp_path, "ann/02_collectives (1).ipynb", "ann/old/02_collectives.ipynb", "ann/02_collectives.ipynb")
    hand_in(tmp_path, "lee_7_1_02_collectives.ipynb", "lee_7_2_02_collectives.ipynb", "ann/01_why_distributed.ipynb")
    os.utime(tmp_path / "lee_7_1_02_collectives.ipynb", (1, 1))
    found, lines = find_submissions(tmp_path, MODULES)
    assert lines == []
    assert [(one.student, one.module, one.remark) for one in found] == [
        ("ann", "01_why_distributed", ""),
        (
            "ann",
            "02_collectives",
            "3 notebooks: ann/02_collectives.ipynb was graded, not ann/old/02_collectives.ipynb, "
            "ann/02_collectives (1).ipynb",
        ),
        (
            "lee_7",
            "02_collectives",
            "2 notebooks: lee_7_2_02_collectives.ipynb was graded, not lee_7_1_02_collectives.ipynb",
        ),
    ]


@pytest.mark.parametrize(
    ("folder", "student"),
    [
        (b"J\xfcrgen", "J\\xfcrgen"),  # Windows' archives
        (b"J\x81rgen_7_assignsubmission_file_", "J\\x81rgen_7"),
        ("Ju\u0308rgen".encode(), "J\u00fcrgen"),  # macOS takes letters apart
        (b"ann\nben\x1b[2J", "ann\\x0aben\\x1b[2J"),
        (b" ann ", "ann"),
        (b"_assignsubmission_file_", "_assignsubmission_file_"),
    ],
)
def test_names_of_any_bytes_become_one_line_of_text(tmp_path, folder, student):
    place = tmp_path / os.fsdecode(folder)
    hand_in(place, "02_collectives.ipynb", "old/02_collectives.ipynb", "a.txt")
    [found], lines = find_submissions(tmp_path, MODULES)
    assert found.student == student and found.path == place / "02_collectives.ipynb"
    for text in (found.remark, *lines):
        assert text.encode() and text.isprintable()


@pytest.mark.parametrize("student", ["x" * 400, "\u00fc" * 300, "..", "a/b", "."])
def test_a_student_s_pages_have_a_folder_whatever_the_name(tmp_path, student):
    (tmp_path / file_name(student)).mkdir()
    assert [place.parent for place in tmp_path.iterdir()] == [tmp_path]
