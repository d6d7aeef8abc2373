"""`make lab` gives learners their own copies and says in one line when a port is taken."""

from __future__ import annotations

import json
import socket

import nbformat
import pytest
from nbformat.sign import NotebookNotary

from tools.lab import copy_notebooks, for_learners, lab_command, port_trouble
from tools.paths import ROOT


@pytest.fixture(autouse=True)
def _own_signatures(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))


def notebook(text):
    """A published notebook: its one cell has run, and its answer is folded away."""
    shown = nbformat.v4.new_output("display_data", data={"text/plain": "the answer"})
    folded = {"jupyter": {"outputs_hidden": True}}
    cell = nbformat.v4.new_code_cell(text, id="a", outputs=[shown], execution_count=1, metadata=folded)
    return json.dumps(nbformat.v4.new_notebook(cells=[cell]))


def course(tmp_path):
    for name in ("notebooks/00_start_here.ipynb", "exercises/release/02_collectives/02_collectives.ipynb"):
        path = tmp_path / "course" / name
        path.parent.mkdir(parents=True)
        path.write_text(notebook("first version"))
    return tmp_path / "course"


def test_notebooks_are_copied_with_the_course_s_folders(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    assert str(copy_notebooks(source, work)) == "your copies in work/: 2 added"
    assert nbformat.read(work / "notebooks/00_start_here.ipynb", as_version=4).cells[0].source == "first version"
    assert str(copy_notebooks(source, work)) == "your copies in work/: 0 added"


def test_take_home_scripts_are_copied_as_they_are(tmp_path):
    source = course(tmp_path)
    (source / "notebooks/scripts").mkdir()
    (source / "notebooks/scripts/02_collectives.py").write_text("print('é')\n", encoding="utf-8")
    assert len(copy_notebooks(source, tmp_path / "work").added) == 3
    assert (tmp_path / "work/notebooks/scripts/02_collectives.py").read_text(encoding="utf-8") == "print('é')\n"


def test_a_copy_shows_nothing_before_it_is_run(tmp_path):
    copy_notebooks(course(tmp_path), tmp_path / "work")
    (cell,) = nbformat.read(tmp_path / "work/notebooks/00_start_here.ipynb", as_version=4).cells
    assert cell.outputs == [] and cell.execution_count is None and cell.metadata == {"jupyter": {}}


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_lesson_s_copy_holds_an_answer(path):
    text = for_learners(path)
    assert "the answer  " in path.read_text() and "the answer  " not in text and "outputs_hidden" not in text


def test_copies_are_trusted(tmp_path):
    copy_notebooks(course(tmp_path), tmp_path / "work")
    copy = nbformat.read(tmp_path / "work/notebooks/00_start_here.ipynb", as_version=4)
    assert NotebookNotary().check_signature(copy)
    copy.cells[0].outputs = [nbformat.v4.new_output("display_data", data={"text/html": "other"})]
    assert not NotebookNotary().check_signature(copy)


def test_an_edited_copy_is_kept_and_an_untouched_one_renewed(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    copy_notebooks(source, work)
    (work / "notebooks/00_start_here.ipynb").write_text("my notes")
    assert copy_notebooks(source, work).kept == []  # edited, but the course has nothing newer
    for path in source.rglob("*.ipynb"):
        path.write_text(notebook("second version"))
    (source / "notebooks/01_new.ipynb").write_text(notebook("new"))
    copies = copy_notebooks(source, work)
    assert copies.added == ["notebooks/01_new.ipynb"]
    assert copies.renewed == ["exercises/release/02_collectives/02_collectives.ipynb"]
    assert copies.kept == ["notebooks/00_start_here.ipynb"]
    assert (work / "notebooks/00_start_here.ipynb").read_text() == "my notes"
    assert "yours kept although the course has newer ones: notebooks/00_start_here.ipynb" in str(copies)


def test_a_copy_from_nowhere_is_never_overwritten(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    mine = work / "notebooks/00_start_here.ipynb"
    mine.parent.mkdir(parents=True)
    mine.write_text("made by hand")
    assert copy_notebooks(source, work).kept == ["notebooks/00_start_here.ipynb"]
    assert mine.read_text() == "made by hand"


def test_a_taken_port_is_one_line_with_the_way_out():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        line = port_trouble(str(port))
    assert f"port {port} on 127.0.0.1 cannot be had" in line
    assert "make lab PORT=" in line and "\n" not in line


def test_a_port_must_be_a_number():
    assert "PORT=abc is not a port" in port_trouble("abc")
    assert "PORT=70000 is not a port" in port_trouble("70000")


def test_lab_listens_on_this_machine_only_and_keeps_its_token(tmp_path):
    command = lab_command("8890", tmp_path, "--no-browser")
    assert "--ServerApp.ip=127.0.0.1" in command and "--ServerApp.port_retries=0" in command
    assert command[-1] == "--no-browser"
    assert not any("token" in option for option in command)
