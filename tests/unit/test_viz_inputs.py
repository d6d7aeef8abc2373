"""Bad input in four parts, the stepper's fallback, and the library's source as shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib import viz
from course_lib.comm.ledger import Ledger
from course_lib.costs.comm.fit import Fit
from course_lib.errors import four_parts
from course_lib.hardware import INFINIBAND, NVLINK
from course_lib.viz.ink.image import as_image
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.messages import all_reduce_messages

FIT = Fit(alpha_s=1e-5, beta_s_per_byte=1e-9, residuals=(), r2=1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.who_holds_what("barrier"), r"who_holds_what: operation='barrier'; only the eight .*; choose one"),
        (
            lambda: viz.who_holds_what("reduce", 9),
            r"who_holds_what: world_size=9; this picture holds 1 to 8 ranks; draw",
        ),
        (
            lambda: viz.who_holds_what("reduce", 0),
            r"who_holds_what: world_size=0; this picture holds 1 to 8 ranks; draw",
        ),
        (
            lambda: viz.ring_all_reduce_step(4, 7),
            r"ring_all_reduce_step: step=7; a ring of 4 has steps 0 to 6.*; choose",
        ),
        (lambda: viz.ring_all_reduce_step(4, -1), r"ring_all_reduce_step: step=-1; a ring of 4 has steps 0 to 6"),
        (lambda: viz.ring_all_reduce_story(5), r"ring_all_reduce_story: world_size=5; this picture holds 1 to 4"),
        (lambda: viz.ring_stepper(16), r"ring_all_reduce_step: world_size=16; this picture holds 1 to 8 ranks"),
        (lambda: viz.plot_ranks(9), r"plot_ranks: world_size=9; this picture holds 1 to 8 ranks"),
        (lambda: viz.plot_timeline(Ledger([], 2)), r"plot_timeline: the ledger has 0 events; .*; communicate through"),
        (lambda: viz.plot_bytes_matrix(Ledger([], 9)), r"plot_bytes_matrix: world_size=9; this picture holds 1 to 8"),
        (lambda: viz.plot_bandwidth([]), r"plot_bandwidth: sweep has 0 points; a curve needs measurements; measure"),
        (lambda: viz.plot_fit([], FIT), r"plot_fit: sweep has 0 points; a curve needs measurements; measure"),
        (lambda: viz.plot_cost_bars("barrier"), r"plot_cost_bars: operation='barrier'; bars need a formula .*; choose"),
        (lambda: viz.plot_messages(["ring"], 9), r"plot_messages: world_size=9; this picture holds 1 to 8"),
        (
            lambda: viz.plot_messages(["pairwise"]),
            r"plot_messages: algorithm='pairwise'; there is no picture.*; choose",
        ),
        (lambda: all_reduce_messages("halving_doubling", 6), r"plot_messages: world_size=6; partners .*; choose 2, 4"),
        (lambda: viz.plot_topology(16, 2, NVLINK, INFINIBAND), r"plot_topology: node_size=16, n_nodes=2; a page holds"),
    ],
)
def test_bad_input_is_one_line_in_four_parts(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert str(caught.value).count("; ") >= 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("p", (1, 2, 4))
def test_the_stepper_shows_its_first_picture_where_no_widget_runs(p):
    stepper = viz.ring_stepper(p)
    bundle = stepper._repr_mimebundle_()
    first = viz.ring_all_reduce_step(p, 0)
    assert bundle["text/html"] == as_image(first.svg, first.text)
    assert bundle["text/plain"] == first.text == repr(stepper)
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_the_slider_reaches_every_step_without_a_kernel():
    stepper = viz.ring_stepper(3)
    assert (stepper.slider.min, stepper.slider.max) == (0, 4)
    slider, stack = stepper._widget.children
    assert stepper._link.source == (slider, "value")
    assert stepper._link.target == (stack, "selected_index")
    assert len(stack.children) == 5
    assert all('<img alt="Ring all-reduce' in page.value for page in stack.children)


def test_source_is_the_code_that_runs():
    source = viz.show_source(four_parts)
    assert source.place == "course_lib/errors.py"
    assert source.code.startswith("def four_parts(operation: str")
    assert source.code.endswith('return f"{operation}: {values}; {rule}; {way_out}"')
    bundle = source._repr_mimebundle_()
    assert bundle["text/markdown"].startswith("`course_lib/errors.py`\n\n```python\ndef four_parts(")
    assert bundle["text/markdown"].endswith("\n```")
    assert bundle["text/plain"] == repr(source)


def test_a_difference_is_made_from_the_files_and_counts_a_line_in_place_of_another_once(tmp_path):
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text("a\nb\nc\nd\ne\nf\ng\n")
    new.write_text("a\nb\nc\nD\n\ne\nf\ng\nh\n")
    shown = viz.show_difference(old, new)
    assert shown.place == "old.py -> new.py, changed lines: 2"
    assert shown.code.splitlines() == ["@@ -2,6 +2,8 @@", " b", " c", "-d", "+D", "+", *[" e", " f", " g"], "+h"]
    page = shown._repr_mimebundle_()["text/html"]
    assert "old.py -&gt; new.py" in page and " b\n c\n<span style='background: rgba(213" in page
    assert page.count("<span") == 4 and ">+h</span></pre>" in page
    assert repr(shown) == f"# {shown.place}\n{shown.code}"
    assert viz.show_difference(old, old).code == ""


def test_source_of_a_method_is_not_indented_and_of_a_decorated_function_is_its_own():
    assert viz.show_source(Picture.save).code.startswith("def save(")
    whole = viz.show_source(Path(__file__))
    assert (whole.place, whole.code) == ("test_viz_inputs.py", Path(__file__).read_text().rstrip())
    assert "def plot_ranks(" in viz.show_source(viz.plot_ranks).code
