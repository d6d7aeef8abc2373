"""`make lab` gives learners their own copies and says in one line when a port is taken."""

from __future__ import annotations

import hashlib
import json
import re
import socket

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpecManager
from nbformat.sign import NotebookNotary

from tools.copies import CONTENTS, COPIED, copy_course, for_learners, kernel_metadata
from tools.lab import JUPYTER, lab_command, lab_environment, port_trouble
from tools.paths import ROOT

LESSON, BESIDE = "notebooks/00_start_here.ipynb", "notebooks/00_start_here (new).ipynb"
EXERCISES = "exercises/release/02_collectives/02_collectives.ipynb"


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
    for name in (LESSON, EXERCISES):
        path = tmp_path / "course" / name
        path.parent.mkdir(parents=True)
        path.write_text(notebook("first version"))
    return tmp_path / "course"


def test_notebooks_are_copied_with_the_course_s_folders(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    assert str(copy_course(source, work)) == "your copies in work/: 2 added"
    assert nbformat.read(work / "notebooks/00_start_here.ipynb", as_version=4).cells[0].source == "first version"
    assert str(copy_course(source, work)) == "your copies in work/: 0 added"


def test_take_home_scripts_are_copied_as_they_are(tmp_path):
    source = course(tmp_path)
    (source / "notebooks/scripts").mkdir()
    (source / "notebooks/scripts/02_collectives.py").write_text("print('é')\n", encoding="utf-8")
    assert len(copy_course(source, tmp_path / "work").added) == 3
    assert (tmp_path / "work/notebooks/scripts/02_collectives.py").read_text(encoding="utf-8") == "print('é')\n"


def test_a_copy_shows_nothing_before_it_is_run(tmp_path):
    copy_course(course(tmp_path), tmp_path / "work")
    (cell,) = nbformat.read(tmp_path / "work/notebooks/00_start_here.ipynb", as_version=4).cells
    assert cell.outputs == [] and cell.execution_count is None and cell.metadata == {"jupyter": {}}


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_lesson_s_copy_holds_an_answer(path):
    text = for_learners(path)
    assert "the answer  " in path.read_text() and "the answer  " not in text and "outputs_hidden" not in text


def test_copies_are_trusted(tmp_path):
    copy_course(course(tmp_path), tmp_path / "work")
    copy = nbformat.read(tmp_path / "work/notebooks/00_start_here.ipynb", as_version=4)
    notary = NotebookNotary()
    assert notary.check_signature(copy)
    copy.cells[0].outputs = [nbformat.v4.new_output("display_data", data={"text/html": "other"})]
    assert not notary.check_signature(copy)
    notary.store.close()


def test_a_copy_describes_its_kernel_as_jupyterlab_does():
    """What differs is written when the page is opened, and a page that was only looked at is saved."""
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    assert kernel_metadata()["kernelspec"] == kernel
    assert kernel_metadata()["language_info"] == dict(IPythonKernel.language_info)


def edit(path, text):
    page = nbformat.read(path, as_version=4)
    page.cells[0].source = text
    nbformat.write(page, path)


def open_and_run(path):
    """What JupyterLab changes though nobody has edited a cell."""
    page = nbformat.read(path, as_version=4)
    page.metadata["kernelspec"]["display_name"] = "Another Python"
    page.cells[0].update({"id": "z", "execution_count": 7, "metadata": {"scrolled": True}})
    page.cells[0].outputs = [nbformat.v4.new_output("stream", text="shown")]
    nbformat.write(page, path)


def publish(source, text):
    for path in source.rglob("*.ipynb"):
        path.write_text(notebook(text))


def test_a_copy_that_was_only_opened_and_run_is_renewed(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    copy_course(source, work)
    open_and_run(work / LESSON)
    publish(source, "second version")
    assert copy_course(source, work).renewed == [LESSON, EXERCISES]
    assert nbformat.read(work / LESSON, as_version=4).cells[0].source == "second version"


def test_a_newer_lesson_is_laid_beside_an_edited_one_once(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    copy_course(source, work)
    edit(work / LESSON, "mine")
    mine = (work / LESSON).read_text()
    assert str(copy_course(source, work)) == "your copies in work/: 0 added"  # the course has nothing newer
    publish(source, "second version")
    told = str(copy_course(source, work))
    assert told == (
        "your copies in work/: 0 added; 1 that you had not edited renewed; "
        "newer ones laid beside those that you have edited: notebooks/00_start_here (new).ipynb"
    )
    assert (work / LESSON).read_text() == mine
    assert nbformat.read(work / BESIDE, as_version=4).cells[0].source == "second version"
    assert str(copy_course(source, work)) == "your copies in work/: 0 added"


def test_what_was_laid_beside_is_renewed_until_it_is_edited_too(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    copy_course(source, work)
    edit(work / LESSON, "mine")
    for version in ("second version", "third version"):
        publish(source, version)
        assert copy_course(source, work).beside == [BESIDE]
    edit(work / BESIDE, "mine as well")
    publish(source, "fourth version")
    assert copy_course(source, work).beside == ["notebooks/00_start_here (new 2).ipynb"]
    sources = [nbformat.read(work / name, as_version=4).cells[0].source for name in (LESSON, BESIDE)]
    assert sources == ["mine", "mine as well"]


def test_what_was_laid_beside_and_put_away_does_not_come_back(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    copy_course(source, work)
    edit(work / LESSON, "mine")
    publish(source, "second version")
    copy_course(source, work)
    (work / BESIDE).rename(work / LESSON)
    edit(work / LESSON, "mine, in the new one")
    assert copy_course(source, work).beside == [] and not (work / BESIDE).exists()


def test_a_record_of_the_course_s_first_versions_is_understood(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    copy_course(source, work)
    noted = {name: hashlib.sha256((work / name).read_bytes()).hexdigest() for name in (LESSON, EXERCISES)}
    (work / COPIED).write_text(json.dumps(noted))
    edit(work / EXERCISES, "mine")
    publish(source, "second version")
    copies = copy_course(source, work)
    assert copies.renewed == [LESSON] and len(copies.beside) == 1


def test_nothing_is_said_of_an_edit_that_the_course_has_made_too(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    copy_course(source, work)
    edit(work / LESSON, "second version")
    publish(source, "second version")
    copies = copy_course(source, work)
    assert copies.beside == [] and copies.renewed == [EXERCISES] and not (work / BESIDE).exists()


@pytest.mark.parametrize("text", ["made by hand", "{}", "[]"])
def test_a_copy_from_nowhere_is_never_overwritten(tmp_path, text):
    source, work = course(tmp_path), tmp_path / "work"
    mine = work / LESSON
    mine.parent.mkdir(parents=True)
    mine.write_text(text)
    assert copy_course(source, work).beside == [BESIDE]
    assert mine.read_text() == text


def test_the_contents_lead_to_what_is_in_work(tmp_path):
    copy_course(ROOT, tmp_path)
    page = (tmp_path / CONTENTS).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 2 * len(list((ROOT / "notebooks/src").glob("*.py"))) - 2
    assert [link for link in links if not (tmp_path / link.partition("#")[0]).is_file()] == []
    assert "slides/" not in page.replace("build/slides", "") and "`make slides`" in page


def test_an_edited_page_of_contents_is_kept_too(tmp_path):
    source, work = course(tmp_path), tmp_path / "work"
    (source / "notebooks/README.md").write_text("# Lessons\n\n## [00](00_start_here.ipynb)\n")
    assert copy_course(source, work).added[0] == CONTENTS
    (work / CONTENTS).write_text("my plan")
    (source / "notebooks/README.md").write_text("# Lessons\n\n## [00 again](00_start_here.ipynb)\n")
    assert copy_course(source, work).beside == ["Contents (new).md"]
    assert (work / CONTENTS).read_text() == "my plan"


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


def test_lab_opens_the_contents_as_a_page_and_brings_no_news(tmp_path):
    command = lab_command("8890", tmp_path)
    assert f"--LabApp.default_url=/lab/tree/{CONTENTS}" in command
    assert f"--LabApp.app_settings_dir={JUPYTER / 'settings'}" in command
    settings = json.loads((JUPYTER / "settings/overrides.json").read_text())
    assert settings["@jupyterlab/docmanager-extension:plugin"]["defaultViewers"] == {"markdown": "Markdown Preview"}
    assert settings["@jupyterlab/apputils-extension:notification"] == {"fetchNews": "false"}


@pytest.mark.parametrize("before", ["", "/opt/jupyter"])
def test_the_course_s_kernel_is_found_before_others(monkeypatch, before):
    monkeypatch.setenv("JUPYTER_PATH", before)
    folders = lab_environment()["JUPYTER_PATH"].split(":")
    assert folders == [str(JUPYTER), *filter(None, [before])]
    monkeypatch.setenv("JUPYTER_PATH", lab_environment()["JUPYTER_PATH"])
    ours = KernelSpecManager().get_kernel_spec("python3")
    usual = get_kernel_dict()
    assert ours.argv[:5] == ["python", *usual["argv"][1:]] and ours.argv[5:] == ["--ext", "course_lib.absent"]
    assert (ours.display_name, ours.metadata) == (usual["display_name"], usual["metadata"])
