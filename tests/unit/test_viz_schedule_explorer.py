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
    return explorer._widget.children[1].value


def test_the_explorer_draws_what_its_controls_say():
    explorer = viz.schedule_explorer()
    assert repr(explorer) == explorer.first.text == explorer.text
    assert explorer.text.startswith(
        "1F1B: 4 ranks, 8 micro-batches (formula)\n"
        "step 33 ms, bubble 9 ms by the list, 9 ms by the formula: 27.3% of the step\n"
    )
    assert "  rank 0: idle 27.3%, in flight 4; computes 24 ms from 0 ms: F0 F1 F2 F3 BW0 F4 BW1 " in explorer.text
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
    explorer.controls["forward_ms"].value, explorer.controls["backward_weight_ms"].value = 111.1, 222.2
    slots = time_schedule(
        make_schedule("zb-h1", 8, 32), Durations(forward_s=0.1111, backward_input_s=1e-3, backward_weight_s=0.2222)
    )
    bubble = f"{bubble_s(slots, 8):.3g} s"
    assert f"bubble {bubble} by the list, {bubble} by the formula: " in explorer.text
    words = next(text for text in drawn_texts(explorer._draw(**explorer._values()).figure) if "by the list" in text[0])
    assert words[2][2] < style.PAGE_WIDTH - style.MARGIN


def test_stages_per_rank_are_for_interleaving_alone():
    explorer = viz.schedule_explorer()
    stages, before = explorer.controls["stages_per_rank"], explorer.text
    assert stages.disabled
    stages.value = 3
    assert explorer.text == before
    explorer.controls["schedule"].value = "interleaved"
    assert not stages.disabled
    assert explorer.text.startswith("interleaved: 4 ranks with 3 stages each, 8 micro-batches (formula)\n")
    assert "bubble 3 ms by the list, 3 ms by the formula" in explorer.text
    explorer.controls["schedule"].value = "gpipe"
    assert stages.disabled


@pytest.mark.parametrize(
    ("control", "value", "message"),
    [
        ("ranks", 9, "schedule_explorer: ranks=9; this picture holds 1 to 8; give as many"),
        ("microbatches", 33, "schedule_explorer: micro-batches=33; this picture holds 1 to 32; give as many"),
        ("stages_per_rank", 5, "schedule_explorer: stages per rank=5; this picture holds 1 to 4; give as many"),
        (
            "forward_ms",
            0.0,
            "schedule_explorer: F=0 ms; a pass takes more than 0 and at most 1000 ms; give such a number",
        ),
        (
            "microbatches",
            7,
            "make_schedule: interleaved, n_microbatches=7, n_ranks=4; micro-batches go round the ranks in groups of "
            "n_ranks; choose 4 or 8",
        ),
    ],
)
def test_what_no_picture_has_is_said_in_its_place_and_can_be_mended(control, value, message):
    explorer = viz.schedule_explorer(schedule="interleaved")
    good, legal = shown(explorer), explorer.controls[control].value
    explorer.controls[control].value = value
    assert explorer.text == message
    assert shown(explorer).startswith('<p role="alert" ')
    explorer.controls[control].value = legal
    assert shown(explorer) == good


def test_an_unknown_schedule_is_refused_in_four_parts():
    message = r"^schedule_explorer: schedule='2f2b'; no schedule is called so; choose one of gpipe, 1f1b, zb-h1, interl"
    with pytest.raises(ValueError, match=message):
        viz.schedule_explorer(schedule="2f2b")
