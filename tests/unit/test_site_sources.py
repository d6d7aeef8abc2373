"""What becomes of the course's files on the site: cells and folds, links, stages of a script, figures, decks, home."""

from __future__ import annotations

from base64 import b64encode
from zipfile import ZipFile

import nbformat
import pytest

from tools.paths import ROOT
from tools.site import bundle, decks, home, links, pictures
from tools.site.cells import shown
from tools.site.lessons import beside
from tools.site.links import Links, demoted, page_of
from tools.site.scripts import stages

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="630pt" viewBox="0 0 720 360"/>'
THERE = {"lessons/02_collectives", "words", "scripts/03_ddp"}


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder in place of the one that Sphinx reads."""
    for module in (decks, home, links, pictures):
        monkeypatch.setattr(module, "SOURCES", tmp_path)
    return tmp_path


def cell_with(output, **hidden):
    return nbformat.v4.new_code_cell("# Setup: run this\nx = 1", metadata={"jupyter": hidden}, outputs=output)


def test_a_hidden_answer_and_a_hidden_setup_are_folded_and_what_a_setup_shows_is_not(sources):
    printed = nbformat.v4.new_output("stream", name="stdout", text="48 < 49\n")
    (asked,) = shown(cell_with([printed], outputs_hidden=True), "../")
    assert asked.outputs[0].data["text/html"] == (
        "<details><summary>After your guess: the answer</summary>\n<pre>48 &lt; 49\n</pre>\n</details>"
    )
    fold, rest = shown(cell_with([printed], source_hidden=True), "../")
    assert fold.source.startswith("<details><summary>Setup</summary>") and "x = 1" in fold.source
    assert rest.outputs[0].text == "48 < 49\n" and rest.metadata["tags"] == ["remove-input"]


def test_a_figure_becomes_a_file_and_keeps_its_place(sources):
    data = b64encode(SVG.encode()).decode()
    element = f'<img alt="a &quot;ring&quot;" src="data:image/svg+xml;base64,{data}" style="max-width: 100%">'
    found = pictures.with_files(element, "../")
    (file,) = (sources / "_extra/figures").iterdir()
    assert file.read_text() == SVG
    assert f'src="../figures/{file.name}" width="840" height="420" loading="lazy"' in found
    assert 'alt="a &quot;ring&quot;"' in found and "base64" not in found
    with pytest.raises(ValueError, match="a figure without a viewBox"):
        pictures.size("<svg/>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](02_collectives.ipynb#Which-chunk%2C-when%3F)", "[a](/lessons/02_collectives.ipynb#which-chunk-when)"),
        ("[`a`](scripts/03_ddp.py)", "[`a`](/scripts/03_ddp.md)"),
        ('<a href="02_collectives.ipynb">02</a>', '<a href="../lessons/02_collectives.html">02</a>'),
        ("[a](https://arxiv.org) [b](#here)", "[a](https://arxiv.org) [b](#here)"),
        ("48 bytes<!-- =6 * 8 -->", "48 bytes"),
        ("[`tools`](../tools)", "`tools`"),
        ("[a](../LICENSE)", '<a href="../files/LICENSE">a</a>'),
    ],
)
def test_a_link_leads_to_the_page_of_a_file_or_to_its_copy(sources, text, expected):
    lesson = Links(ROOT / "notebooks/01_why_distributed.ipynb", "lessons/01_why_distributed", THERE)
    assert lesson.rewritten(text) == expected
    assert (sources / "_extra/files/LICENSE").exists() == ("LICENSE" in text)


def test_a_link_to_nothing_is_no_page():
    with pytest.raises(FileNotFoundError):
        Links(ROOT / "README.md", "index", set()).rewritten("[a](no_such_file.md)")
    assert page_of("Makefile") is None


def test_headings_of_what_goes_deeper_are_one_lower_and_comments_in_code_stay():
    assert demoted("# Going deeper\n\n## Twice\n```python\n# no heading\n```") == (
        "## Going deeper\n\n### Twice\n```python\n# no heading\n```"
    )


def test_the_stages_of_the_script_follow_each_other_as_the_lessons_compare_them():
    found = stages()
    assert found["03_ddp.py"] == "01_one_device.py" and found["04_pipeline.py"] == "03_ddp.py"
    assert len(found) >= 7 and all((ROOT / f"notebooks/scripts/{name}").exists() for name in [*found, *found.values()])


def test_decks_are_linked_when_they_have_been_built_and_else_it_is_said_how(sources, tmp_path, monkeypatch):
    lesson = ROOT / "notebooks/02_collectives.ipynb"
    folder = tmp_path / "decks"
    folder.mkdir()
    monkeypatch.setattr(decks, "BUILT", folder)
    found = decks.copy_decks()
    decks.write_decks(found)
    assert found == {} and "make slides" in (sources / "slides/index.md").read_text()
    assert ("Slides", "../slides/index.html") in beside(lesson, "notebooks/02_collectives.ipynb", set(), [])
    for name in ("02_collectives.html", "02_collectives.pdf", "03_mlp_ddp.html"):  # the check of slides builds no PDF
        (folder / name).write_text("a deck")
    found = decks.copy_decks()
    decks.write_decks(found)
    assert found == {"02_collectives": [".html", ".pdf"], "03_mlp_ddp": [".html"]}
    assert (sources / "_extra/slides/02_collectives.pdf").read_text() == "a deck"
    text = (sources / "slides/index.md").read_text()
    assert '(/lessons/02_collectives.ipynb) | <a href="02_collectives.html">as a page</a>, <a href="02_coll' in text
    ways = [*beside(lesson, "notebooks/02_collectives.ipynb", set(), found["02_collectives"])]
    assert ("Slides as PDF", "../slides/02_collectives.pdf") in ways and "../slides/index.html" not in dict(
        ways
    ).values()


def test_home_says_minutes_that_are_computed_and_refuses_a_name_that_nothing_computes(sources, tmp_path, monkeypatch):
    home.write_home()
    text = (sources / "index.md").read_text()
    assert "{{" not in text and home.minutes()["afternoon"] in text and 'data-panel="memory"' in text
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.md").write_text("{{ seats }}")
    monkeypatch.setattr(home, "SITE", tmp_path / "site")
    with pytest.raises(KeyError, match="seats"):
        home.write_home()


def test_the_archive_holds_packages_as_python_imports_them(tmp_path):
    """Wherever the environment lies: inside the repository, as `make setup` puts it, or elsewhere."""
    bundle.write_bundle(tmp_path / "course.zip")
    with ZipFile(tmp_path / "course.zip") as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == set(bundle.PACKAGES)
