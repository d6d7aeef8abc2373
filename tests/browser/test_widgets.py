"""The explorers of lessons 01, 04 and 08, driven as learners do: they say what the same picture says in Python."""

from __future__ import annotations

import nbformat
import pytest

from course_lib import viz
from tests.browser.lab import open_notebook, run_all, unexpected_errors

pytestmark = pytest.mark.timeout(900)

SAID = """output => {
    const refused = output.querySelector('[role=alert]');
    return (refused ?? output.querySelector('desc') ?? output.querySelector('details pre')).textContent;
}"""
WHOLE = "output => output.scrollWidth <= output.clientWidth && output.scrollHeight <= output.clientHeight"
LABELS = {
    "model": "model",
    "device": "device",
    "dp": "data (dp)",
    "tp": "tensor (tp)",
    "pp": "pipeline (pp)",
    "zero_stage": "ZeRO stage",
    "recompute": "recompute",
    "sequence": "sequence",
    "microbatch": "micro-batch",
}


@pytest.fixture(scope="module")
def lesson(browser, lab, work):
    """One page for all tests here: lesson 01's imports, its explorers and those of lessons 04 and 08, run once."""
    notebook = nbformat.read(work / "notebooks/01_why_distributed.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = [code[0], *(cell for cell in code if cell.source.endswith("_explorer()"))]
    notebook.cells += [nbformat.v4.new_code_cell(f"viz.{name}_explorer()") for name in ("schedule", "planner")]
    path = work / "explorers.ipynb"
    for cell in notebook.cells:
        cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, path)
    page, errors = browser.new_page(viewport={"width": 1400, "height": 1000}), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    open_notebook(page, lab, path.name)
    cells = run_all(page, path)
    assert [error for cell in cells for error in unexpected_errors(cell)] == []
    assert len(cells) == 5
    yield page
    page.close()
    assert errors == []


def control_of(page, label):
    """The box of the first control called `label`, with its words."""
    return page.locator(".widget-inline-hbox", has=page.get_by_text(label, exact=True)).first


def explorer_of(page, label):
    """The first output that holds a control called `label`."""
    named = page.locator(".widget-inline-hbox", has=page.get_by_text(label, exact=True))
    return page.locator(".jp-OutputArea-output", has=named).first


def said(page, label):
    """The words of the explorer's picture, or of what stands in its place."""
    return explorer_of(page, label).evaluate(SAID)


def change(page, label, value, until=None):
    """Give a control the value of this name by hand; return what its explorer says when it has come to rest.

    That is when it says `until`, if it ever does; each key of a slider draws a picture on the way.
    """
    before, control = said(page, label), control_of(page, label)
    if control.locator(".noUi-handle").count():  # which may end where it was, so that nothing else is said
        slide(control, value)
        page.wait_for_timeout(1000)
        return at_rest(page, label, until)
    if control.locator("select").count():
        control.locator("select").select_option(label=value)
    else:
        control.locator("input").fill(value)
        control.locator("input").press("Enter")
    output = explorer_of(page, label).element_handle()
    page.wait_for_function(f"([output, before]) => ({SAID})(output) !== before", arg=[output, before])
    return at_rest(page, label, until)


def slide(control, value):
    """Move a slider by its keys until it shows `value`."""
    handle, shown = control.locator(".noUi-handle"), control.locator(".widget-readout")
    handle.press("Home")
    for _ in range(40):
        if shown.inner_text() == value:
            return
        handle.press("ArrowRight")
    raise AssertionError(f"the slider never showed {value}")


def at_rest(page, label, until=None):
    """What an explorer says once it says what is awaited, or if nothing is, the same for three seconds."""
    found, same = said(page, label), 0
    while same < (6 if until is None else 40) and (
        until is None or without_comparison(found) != without_comparison(until)
    ):
        page.wait_for_timeout(500)
        before, found = found, said(page, label)
        same = same + 1 if found == before else 0
    return found


def without_comparison(text):
    """Keys of a slider draw every picture on the way, so what was before differs."""
    return text.partition("\n  before: ")[0]


def assert_refused_in_a_sentence(page, label, message):
    """`message` below the picture, which stays, nothing of it cut off, and no traceback anywhere."""
    output = explorer_of(page, label)
    assert said(page, label) == message
    alert = output.get_by_role("alert")
    assert alert.is_visible() and 30 < alert.bounding_box()["height"] < 80  # pixels: of one line, at most two
    assert output.evaluate(WHOLE)
    assert output.locator("img, div > svg[role=img]").count() == 1
    assert page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert "Traceback" not in page.locator(".jp-Notebook").inner_text()


@pytest.mark.parametrize(("label", "controls"), [("a number", 1), ("model", 9), ("schedule", 7), ("GPUs", 9)])
def test_an_explorer_is_as_wide_as_its_picture_and_nothing_is_cut_off(lesson, label, controls):
    output = explorer_of(lesson, label)
    picture = output.locator("img, div > svg[role=img]")
    assert picture.bounding_box()["width"] == pytest.approx(840, abs=0.5)  # so its letters are as large as meant
    assert output.evaluate(WHOLE)
    right = picture.bounding_box()["x"] + 840
    boxes = [control.bounding_box() for control in output.locator(".widget-inline-hbox:not(.widget-html)").all()]
    assert all(box["x"] + box["width"] <= right for box in boxes)
    assert len(boxes) == controls
    if controls > 1:
        assert len({box["x"] for box in boxes}) == 3  # aligned columns
        assert max(box["x"] + box["width"] for box in boxes) == pytest.approx(right, abs=4)


def test_a_typed_number_shows_its_bits(lesson):
    for typed, number in {"0.1": 0.1, "65520": 65520.0, "448 + 32": 480.0}.items():
        found = change(lesson, "a number", typed)
        assert found == viz.float_bits(number).text
        assert all(word in found for word in ("sign 0", "exponent", "mantissa"))
    assert "bf16: " in found and "cut to the largest, relative error 0.067" in found


def test_what_is_no_number_gives_one_line_and_a_number_the_bits_again(lesson):
    for typed in ("nonsense", "1/0"):
        change(lesson, "a number", typed)
        message = f"float_bits_explorer: {typed!r}; a number, or arithmetic on numbers with a real value; "
        assert_refused_in_a_sentence(lesson, "a number", message + "type 0.1 or 65504 + 16")
    assert change(lesson, "a number", "0.1") == viz.float_bits(0.1).text


def test_every_control_of_the_memory_explorer_changes_the_bars(lesson):
    twin = viz.memory_explorer()
    assert said(lesson, "model") == twin.text
    assert "too much, 1.16 × what it has" in twin.text
    changes = {"dp": 2, "tp": 4, "pp": 2, "zero_stage": 1, "recompute": "layers", "sequence": 8192, "microbatch": 2}
    for name, value in {**changes, "device": "a100_sxm_40", "model": "llama3_1_405b"}.items():
        twin.controls[name].value = value
        assert change(lesson, LABELS[name], twin.controls[name].label, twin.text) == twin.text
    assert twin.text.count("GB, too much, ") == 2


def test_an_illegal_spread_gives_one_line_and_a_legal_one_the_bars_again(lesson):
    change(lesson, "model", "Llama 3.1 8B")
    before = change(lesson, "pipeline (pp)", "2")
    change(lesson, "pipeline (pp)", "64")
    message = "ParallelConfig: pp=64; pp divides n_layers=32; choose pp in [1, 2, 4, 8, 16, 32]"
    assert_refused_in_a_sentence(lesson, "pipeline (pp)", message)
    assert change(lesson, "pipeline (pp)", "2", before) == before
    change(lesson, "model", "GPT-3 175B")
    message = "ModelConfig 'GPT-3 175B': sequence=8192; its table of learned positions has 2048 rows; "
    assert_refused_in_a_sentence(lesson, "model", message + "give sequence <= 2048")
    assert "GPT-3 175B on 16 GPUs" in change(lesson, "sequence", "2,048")


def test_a_button_sets_several_controls(lesson):
    twin = viz.memory_explorer()
    twin.presets["8B on one node"].click()
    explorer_of(lesson, "model").get_by_role("button", name="8B on one node").click()
    assert at_rest(lesson, "model", twin.text) == twin.text


def test_the_schedule_explorer_reacts_to_every_control(lesson):
    twin = viz.schedule_explorer()
    assert said(lesson, "schedule") == twin.text
    stages = control_of(lesson, "stages per rank").locator(".noUi-target")
    assert stages.get_attribute("disabled") is not None
    changes = {"schedule": "interleaved", "stages_per_rank": 3, "ranks": 2, "microbatches": 4}
    changes |= {"forward_ms": 1.5, "backward_input_ms": 2.5, "backward_weight_ms": 0.5}
    for name, value in changes.items():
        twin.controls[name].value = value
        found = change(lesson, twin.controls[name].description, twin.controls[name].label, twin.text)
        assert without_comparison(found) == without_comparison(twin.text)
    assert "bubble 1.5 ms by the list, 1.5 ms by the formula" in twin.text
    change(lesson, "micro-batches", "3")
    rule = "micro-batches go round the ranks in groups of n_ranks"
    message = f"make_schedule: interleaved, n_microbatches=3, n_ranks=2; {rule}; choose 2 or 4"
    assert_refused_in_a_sentence(lesson, "micro-batches", message)
    assert without_comparison(change(lesson, "micro-batches", "4", twin.text)) == without_comparison(twin.text)


def test_the_planner_plans_what_its_controls_say_and_shows_what_comes_nearest(lesson):
    twin = viz.planner_explorer()
    assert said(lesson, "GPUs") == twin.text
    for name in ("405B on 16 GPUs", "8B on one node"):
        twin.presets[name].click()
        explorer_of(lesson, "GPUs").get_by_role("button", name=name).click()
        assert at_rest(lesson, "GPUs", twin.text) == twin.text
    for name, value in {"cut": True, "place": 3, "network": 0.25}.items():
        twin.controls[name].value = value
        found = change(lesson, twin.controls[name].description, twin.controls[name].label, twin.text)
        assert without_comparison(found) == without_comparison(twin.text)
    assert "No. 3: step " in twin.text and "network × 0.25" in twin.text
