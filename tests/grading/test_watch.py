"""Without bubblewrap a submission can write: it is seen after its run, and nothing that came of it counts."""

from __future__ import annotations

import os
import subprocess
import sys

import nbformat
import pytest

from tools.grading import __main__ as grading
from tools.grading import isolation, marking
from tools.grading.watch import Watch, of_course_and_python
from tools.paths import ROOT

MODULE = "02_collectives"


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "lib" / "inner").mkdir(parents=True)
    (tmp_path / "lib" / "inner" / "a.py").write_text("a = 1\n")
    return tmp_path / "lib"


def write_and_put_back(tree):
    path = tree / "inner" / "a.py"
    found, times = path.read_text(), path.stat()
    path.write_text("evil")
    path.write_text(found)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def add_and_remove(tree):
    (tree / "sitecustomize.py").touch()
    (tree / "sitecustomize.py").unlink()


def put_another_in_its_place(tree):
    (tree / "inner").rename(tree.parent / "away")
    (tree / "inner").mkdir()
    (tree / "inner" / "a.py").write_text("a = 1\n")


CHANGES = {
    "written": (lambda tree: (tree / "inner" / "a.py").write_text("a = 2\n"), "lib/inner/a.py"),
    "same size": (write_and_put_back, "lib/inner/a.py"),
    "new": (lambda tree: (tree / "inner" / "torch.py").touch(), "lib/inner/torch.py"),
    "new for a while": (add_and_remove, "lib"),
    "removed": (lambda tree: (tree / "inner" / "a.py").unlink(), "lib/inner/a.py"),
    "rights": (lambda tree: (tree / "inner" / "a.py").chmod(0o777), "lib/inner/a.py"),
    "a link": (lambda tree: (tree / "inner" / "b.py").symlink_to("/etc/passwd"), "lib/inner/b.py"),
    "replaced": (put_another_in_its_place, "lib/inner"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(tree, change):
    watch = Watch([tree])
    assert watch.changed() == ""
    CHANGES[change][0](tree)
    assert str(tree.parent / CHANGES[change][1]) in watch.changed()


def test_reading_and_importing_are_no_change(tree):
    watch = Watch([tree])
    words = [sys.executable, "-B", "-c", "import a; print(a.a)"]
    assert subprocess.run(words, cwd=tree / "inner", capture_output=True, text=True).stdout == "1\n"
    assert watch.changed() == ""


def test_what_is_watched_is_what_submissions_and_the_grader_import():
    import torch

    places = of_course_and_python()
    for path in (ROOT / "course_lib", ROOT / "exercises" / "src", isolation.WARDEN, torch.__file__, os.__file__):
        assert any(os.path.realpath(path).startswith(os.path.realpath(place)) for place in places)


SPOILS = """
import pathlib
{action}
print("[]")
"""


@pytest.fixture
def grade(tmp_path, monkeypatch, tree):
    """Run `make grade` without bubblewrap; each submission is one program, and `tree` stands for the library."""
    monkeypatch.setattr(isolation, "trouble", lambda: "left out")
    monkeypatch.setattr(marking, "of_course_and_python", lambda: [tree])
    monkeypatch.setattr(marking.compileall, "compile_dir", lambda *place, quiet: None)
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)

    def run(action, *students):
        folder = tmp_path / "class"
        for student in students:
            (folder / student).mkdir(parents=True, exist_ok=True)
            notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", id="setup")])
            (folder / student / f"{MODULE}.ipynb").write_text(nbformat.writes(notebook))
        program = tmp_path / "program.py"
        program.write_text(SPOILS.format(action=action))
        monkeypatch.setattr("tools.grading.progress.EXECUTE", program)
        return grading.main("grade", str(folder), f"--out={tmp_path / 'out'}", "--jobs=1")

    return run


def test_a_submission_that_writes_to_the_library_or_to_another_one_ends_the_grading(grade, tree, tmp_path, capsys):
    for target in (tree / "inner" / "b.py", tmp_path / "class" / "cho" / f"{MODULE}.ipynb"):
        assert grade(f"pathlib.Path({str(target)!r}).write_text('x')", "ann", "ben", "cho") == 1
        error = capsys.readouterr().err
        assert error.startswith(f"make grade: while ann ran, something changed that submissions are run from: {target}")
        assert error.count("\n") == 1
        target.unlink()
    assert not (tmp_path / "out" / "grades" / f"{MODULE}.csv").exists()


def test_grades_that_a_submission_has_changed_are_written_again(grade, tmp_path, capsys):
    table = tmp_path / "out" / "grades" / f"{MODULE}.csv"
    forged = b"student,points\r\nann,100\r\n"
    assert grade("", "ann") == 0
    assert grade(f"pathlib.Path({str(table)!r}).write_bytes({forged!r})", "ben") == 0
    rows = table.read_text("utf-8-sig").splitlines()
    assert [row.split(",")[0] for row in rows] == ["student", "ann", "ben"] and "100" not in rows[1]
    assert table.with_suffix(".changed.csv").read_bytes() == forged
    assert f"somebody changed it meanwhile, which is in {MODULE}.changed.csv" in capsys.readouterr().out


def test_a_table_that_is_not_understood_ends_the_command_before_anything_is_run(grade, tmp_path, capsys):
    table = tmp_path / "out" / "grades" / f"{MODULE}.csv"
    table.parent.mkdir(parents=True)
    table.write_text("name,points\nann,3\n")
    assert grade("", "ann") == 1
    assert capsys.readouterr().err.startswith(f"make grade: {table}: no column student; mend it, or put it elsewhere")
    assert list(table.parent.iterdir()) == [table] and table.read_text() == "name,points\nann,3\n"


def test_two_graders_do_not_write_to_one_folder(grade, tmp_path, capsys):
    with grading.only_grader_in(tmp_path / "out" / "grades"):
        assert grade("", "ann") == 1
    assert capsys.readouterr().err == (
        f"make grade: another make grade writes to {tmp_path / 'out' / 'grades'}; wait for its end\n"
    )


def test_a_terminal_that_lacks_a_letter_ends_nothing(tmp_path):
    place = tmp_path / "class" / os.fsdecode("Zoë ж".encode()) / "report.txt"
    place.parent.mkdir(parents=True)
    place.touch()
    ran = subprocess.run(
        [sys.executable, "-m", "tools.grading", "grade", str(tmp_path / "class"), f"--out={tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.startswith("Zo\\xeb \\u0436/report.txt: not taken, it is no notebook (.ipynb)")
    assert ran.stderr.startswith("make grade: no submission in ")
