"""Each lesson that builds something leads to the file that runs it."""

from __future__ import annotations

import re

import pytest

from tools.build_notebooks import read_source
from tools.copies import LIBRARY, copy_course
from tools.paths import ROOT

SOURCES = [path for path in sorted((ROOT / "notebooks/src").glob("*.py")) if path.name[:2] >= "02"]
LINK = re.compile(
    r"^## The file behind this lesson\n\n\[`(course_lib/[\w/]+\.py)`\]\((\S+)\), about (\d+) lines, ", re.MULTILINE
)
NEAR = 0.15  # "about" so many lines
PAGES = {  # a learner reads it from top to bottom
    "02": "course_lib/comm/ring.py",
    "03": "course_lib/parallel/data/buckets.py",
    "05": "course_lib/parallel/tensors/layers.py",
    "06": "course_lib/parallel/sharding/flat_row.py",
}


def test_there_are_lessons():
    assert len(SOURCES) >= 7


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_lesson_ends_with_the_file_behind_it(source):
    texts = [cell.source for cell in read_source(source).cells if cell.cell_type == "markdown"]
    [(name, link, lines)] = [found.groups() for text in texts for found in LINK.finditer(text)]
    assert link == f"../{name}"
    length = len((ROOT / name).read_text().splitlines())
    assert length == pytest.approx(int(lines), rel=NEAR)
    assert name == PAGES.get(source.name[:2], name)


def test_the_link_leads_somewhere_in_a_learner_s_folder_too(tmp_path):
    work = tmp_path / "work"
    copy_course(ROOT, work)
    assert (work / LIBRARY / "comm/ring.py").samefile(ROOT / "course_lib/comm/ring.py")
