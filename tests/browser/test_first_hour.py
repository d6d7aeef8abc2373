"""What a learner meets first: the contents, a page only looked at, a passed-over Setup, unsolved exercises."""

from __future__ import annotations

import pytest

from tests.browser.lab import TOKEN, open_notebook, run_all

pytestmark = pytest.mark.timeout(900)
EXERCISES = "exercises/release/01_why_distributed.ipynb"


def test_lab_opens_with_the_contents_and_they_lead_to_the_exercises(page, lab):
    page.goto(f"{lab}/?token={TOKEN}")
    page.wait_for_selector(".jp-RenderedMarkdown h1 >> text=The course, lesson by lesson")
    page.locator(".jp-RenderedMarkdown a", has_text="exercises").first.click()
    page.wait_for_selector(".jp-Notebook .jp-RenderedMarkdown h1 >> text=Exercises 01")


def test_opening_a_page_does_not_change_it(page, lab, work):
    path = work / "notebooks/03_mlp_ddp.ipynb"
    before = path.read_text(encoding="utf-8")
    open_notebook(page, lab, "notebooks/03_mlp_ddp.ipynb")
    page.wait_for_timeout(3000)
    assert page.locator(".jp-mod-dirty").count() == 0
    page.keyboard.press("Control+s")
    page.wait_for_timeout(2000)
    assert path.read_text(encoding="utf-8") == before


def test_a_passed_over_setup_is_named(page, lab):
    open_notebook(page, lab, EXERCISES)
    cell = page.locator(".jp-CodeCell", has_text="GRADE_SEED").nth(1)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    cell.locator(".jp-OutputArea >> text=Run the cell called Setup").wait_for()


def test_running_all_unsolved_exercises_shows_a_line_for_each_graded_cell(page, lab, work):
    open_notebook(page, lab, EXERCISES)
    cells = run_all(page, work / EXERCISES)
    assert all(cell.execution_count for cell in cells)
    graded = [cell for cell in cells if cell.metadata.get("nbgrader", {}).get("grade")]
    lines = [output.traceback for cell in graded for output in cell.outputs]
    assert len(lines) == len(graded) > 20
    assert all(len(shown) == 1 and shown[0].startswith("not yet: 01.") and "\n" not in shown[0] for shown in lines)
    assert all(cell.metadata["jupyter"]["source_hidden"] for cell in graded)
