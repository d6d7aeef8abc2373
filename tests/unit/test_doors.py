"""The files by which others open, cite and continue the course parse, and what they name is there."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib

import pytest
import yaml

from course_lib import __version__
from tools.paths import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PAGES = ("doors/README.md", "LICENSE-TEXTS.md", "CHANGELOG.md", "CONTRIBUTING-LESSONS.md")
NOT_RUN = ("doors/colab_first_cell.txt", ".binder/postBuild", "doors/hub/Dockerfile")
HANDOUT = ("pyproject.toml", "constraints.txt", "course_lib")  # what an image is built from


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page):
    folder = (ROOT / page).parent
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / page).read_text())
    assert links and [link for link in links if not (folder / link).exists()] == []


def test_the_citation_has_what_the_format_asks_for_and_the_library_s_version():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "title", "message", "authors"} <= found.keys() and found["authors"]
    assert found["version"] == __version__ and f"({__version__})" in (ROOT / "CHANGELOG.md").read_text()


def test_extras_that_a_page_names_are_there():
    texts = [(ROOT / name).read_text() for name in (*PAGES, *NOT_RUN, "tools/workshop/texts/seats.md")]
    named = {name for text in texts for name in re.findall(r"[.l`]\[(\w+)\]['\"`]", text)}
    assert {"course", "instructor"} <= named <= EXTRAS.keys()


def test_a_door_that_has_not_run_says_so():
    page = (ROOT / "doors/README.md").read_text()
    assert page.count("| not run |") == len(NOT_RUN) + 1  # JSON has no comments: the container's is said in the page
    assert all("Not run by us." in (ROOT / name).read_text() for name in NOT_RUN)


def test_an_editor_s_container_sets_up_by_a_command_of_the_makefile():
    found = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    command, target = found["postCreateCommand"].split()
    assert command == "make" and re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_binder_s_script_is_a_script_and_reads_what_is_there():
    script = ROOT / ".binder/postBuild"
    assert subprocess.run(["bash", "-n", script]).returncode == 0 and script.stat().st_mode & 0o111
    assert re.findall(r"--constraint (\S+)", script.read_text()) == ["constraints.txt"] * 2


def test_an_image_is_built_from_a_handout():
    lines = (ROOT / "doors/hub/Dockerfile").read_text().splitlines()
    assert "COPY . ." in lines and any("build/workshop/day/handout" in line for line in lines)
    assert all((ROOT / name).exists() for name in HANDOUT)
