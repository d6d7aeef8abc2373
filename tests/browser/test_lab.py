"""The course as a learner meets it: JupyterLab in a real browser."""

from __future__ import annotations

import pytest

from tests.browser.lab import ending_at, open_notebook, run_all, unexpected_errors

pytestmark = pytest.mark.timeout(900)


def test_nothing_is_answered_before_anything_is_run(page, lab):
    open_notebook(page, lab, "notebooks/02_collectives.ipynb")
    page.wait_for_selector(".jp-MarkdownCell .jp-RenderedMarkdown")
    assert page.locator(".jp-OutputArea-output").count() == 0


def test_the_first_lesson_runs_from_the_menu(page, lab, work):
    open_notebook(page, lab, "notebooks/00_start_here.ipynb")
    cells = run_all(page, work / "notebooks/00_start_here.ipynb")
    assert [error for cell in cells for error in unexpected_errors(cell)] == []
    assert all(cell.execution_count for cell in cells)
    shown = str([cell.outputs for cell in cells])
    assert "rank 3" in shown and "put your number in place of None" in shown and "the answer  " not in shown


def test_the_slider_of_the_ring_moves_its_picture(page, lab, work):
    path = ending_at(work / "notebooks/02_collectives.ipynb", "viz.ring_stepper")
    open_notebook(page, lab, "notebooks/02_collectives.ipynb")
    cells = run_all(page, path)
    assert [error for cell in cells for error in unexpected_errors(cell)] == []
    handle = page.locator(".widget-slider .noUi-handle").first
    handle.scroll_into_view_if_needed()
    pictures = page.locator(".jp-OutputArea-output:has(.widget-slider) :is(img, svg)")
    before = pictures.evaluate_all("all => all.map(one => one.outerHTML)")
    handle.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        """before => JSON.stringify(before) !== JSON.stringify(Array.from(document.querySelectorAll(
            '.jp-OutputArea-output:has(.widget-slider) :is(img, svg)')).map(one => one.outerHTML))""",
        arg=before,
    )
    assert before
