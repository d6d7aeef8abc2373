"""The schedule explorer without a browser: what its controls say, what it refuses, and how it looks."""

from __future__ import annotations

import html

import pytest

from course_lib import viz
from course_lib.costs.comm.pipeline import pipeline_bubble_s
from course_lib.schedules import SCHEDULES, Durations, bubble_s, make_schedule, time_schedule
from course_lib.viz import style
from tests.unit.test_viz_pictures import drawn_texts, flaws


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_text_is_large_within_the_margins_and_does_not_overlap(name):
    assert list(flaws(viz.schedule_explorer(8, 32, name).first.figure)) == []


def shown(explorer):
    return explorer._shown.value


def refused(explorer):
    return explorer._refused.value


def test_the_explorer_draws_what_its_controls_say():
    explorer = viz.schedule_explorer()
    assert repr(explorer) == explorer.first.text == explorer.text
    assert explorer.text.startswith(
        "1F1B: 4 ranks, 8 micro-batches (formula)\n"
        "step 33 ms, bubble 9 ms by the list, 9 ms by the formula: 27.3% of the step\n"
    )
    assert (
        "  rank 0: idle 27.3%, in flight 4, stashed 0; computes 24 ms from 0 ms: F0 F1 F2 F3 BW0 F4 BW1 "
        in explorer.text
    )
    values = {"ranks": 3, "microbatches": 6, "backward_weight_ms": 0.5, "forward_ms": 2.0, "backward_input_ms": 1.5}
    texts = {explorer.text}
    for name, value in {**values, "schedule": "zb-h1"}.items():
        explorer.controls[name].value = value
        texts.add(explorer.text)
    assert len(texts) == 7
    assert f'alt="{html.escape(explorer.text[:80]).splitlines()[0]}' in shown(explorer)
    bubble = pipeline_bubble_s(
        "zb-h1", n_ranks=3, n_microbatches=6, forward_s=2, backward_input_s=1.5, backward_weight_s=0.5
    )
    assert f"bubble {bubble:g} ms by the list, {bubble:g} ms by the formula" in explorer.text
    assert "  rank 2: idle 20%, in flight 1, stashed 3; computes 24 ms from 4 ms" in explorer.text


def test_long_numbers_have_room():
    explorer = viz.schedule_explorer(8, 32, "zb-h1")
    explorer.controls["forward_ms"].value, explorer.controls["backward_weight_ms"].value = 2.75, 2.25
    slots = time_schedule(
        make_schedule("zb-h1", 8, 32), Durations(forward_s=2.75e-3, backward_input_s=1e-3, backward_weight_s=2.25e-3)
    )
    bubble = f"{1e3 * bubble_s(slots, 8):.3g} ms"
    assert f"bubble {bubble} by the list, {bubble} by the formula: " in explorer.text
    drawn = drawn_texts(explorer._draw(before=explorer._drawn, **explorer._drawn).figure)
    words = next(text for text in drawn if "by the list" in text[0])
    assert words[2][2] < style.PAGE_WIDTH - style.MARGIN


def test_the_axis_stays_and_a_line_says_where_the_step_ended_before():
    explorer = viz.schedule_explorer()
    assert "before" not in explorer.text
    explorer.presets["ZB-H1"].click()
    assert explorer.text.splitlines()[1].startswith("step 27 ms, ")
    assert explorer.text.endswith("\n  before: step 33 ms")
    pictures = [
        explorer._draw(before=before, **explorer._drawn) for before in (None, {**explorer._drawn, "schedule": "1f1b"})
    ]
    ends = [picture.figure.axes[1].get_xlim() for picture in pictures]
    assert ends[0] == ends[1] == (0, 40)
    marks = [line for line in pictures[1].figure.axes[1].lines if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in marks] == [pytest.approx(33)]
    for picture in pictures:
        assert list(flaws(picture.figure)) == []


def test_stages_per_rank_are_for_interleaving_alone():
    explorer = viz.schedule_explorer()
    stages, before = explorer.controls["stages_per_rank"], explorer.text
    assert stages.disabled
    stages.value = 3
    assert explorer.text == f"{before}\n  before: step 33 ms"
    explorer.controls["schedule"].value = "interleaved"
    assert not stages.disabled
    assert explorer.text.startswith("interleaved: 4 ranks with 3 stages each, 8 micro-batches (formula)\n")
    assert "bubble 3 ms by the list, 3 ms by the formula" in explorer.text
    explorer.controls["schedule"].value = "gpipe"
    assert stages.disabled


def test_what_a_schedule_cannot_be_is_said_below_the_last_picture_which_stays():
    explorer = viz.schedule_explorer(schedule="interleaved")
    good = shown(explorer)
    explorer.controls["microbatches"].value = 7
    message = (
        "make_schedule: interleaved, n_microbatches=7, n_ranks=4; micro-batches go round the ranks in groups of "
        "n_ranks; choose 4 or 8"
    )
    assert explorer.text == message
    assert shown(explorer) == good and refused(explorer).startswith('<p role="alert" ')
    explorer.controls["microbatches"].value = 8
    assert explorer.text.splitlines()[1].startswith("step ") and refused(explorer) == ""


def test_a_button_sets_several_controls_and_draws_once(monkeypatch):
    explorer, drawn = viz.schedule_explorer(), []
    picture = explorer._picture
    monkeypatch.setattr(explorer, "_picture", lambda: drawn.append(explorer.controls) or picture())
    explorer.presets["a slow forward"].click()
    assert len(drawn) == 1 and explorer.controls["forward_ms"].value == 2.0


def test_an_unknown_schedule_is_refused_in_four_parts():
    message = r"^schedule_explorer: schedule='2f2b'; no schedule is called so; choose one of gpipe, 1f1b, zb-h1, interl"
    with pytest.raises(ValueError, match=message):
        viz.schedule_explorer(schedule="2f2b")
