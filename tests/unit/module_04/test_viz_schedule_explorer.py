"""The schedule explorer without a browser: what its controls say, what it refuses, and how it looks."""

from __future__ import annotations

import html
import re
import subprocess
import sys

import pytest

from course_lib import viz
from course_lib.costs.comm.pipeline import pipeline_bubble_s
from course_lib.schedules import SCHEDULES, Durations, bubble_s, make_schedule, time_schedule
from course_lib.viz.ink import style
from tests.unit.moving_svg import Film, boxes, drawn_texts, flaws
from tools.paths import ROOT


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_text_is_large_within_the_margins_and_does_not_overlap(name):
    assert flaws(viz.schedule_explorer(8, 32, name).first.svg) == []


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
    assert f"<desc>{html.escape(explorer.text, quote=False)}</desc>" in shown(explorer)
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
    svg = explorer._panel.draw(before=explorer._drawn, **explorer._drawn).svg
    assert any("by the list" in words for words, *_ in drawn_texts(svg)) and flaws(svg) == []


def test_the_axis_stays_and_an_outline_says_where_the_step_ended_before():
    explorer = viz.schedule_explorer()
    assert "before" not in explorer.text
    explorer.presets["ZB-H1"].click()
    assert explorer.text.splitlines()[1].startswith("step 27 ms, ")
    assert explorer.text.endswith("\n  before: step 33 ms")
    svgs = [
        explorer._panel.draw(before=old, **explorer._drawn).svg
        for old in (None, {**explorer._drawn, "schedule": "1f1b"})
    ]
    svgs.append(explorer._panel.draw(before=None, **{**explorer._drawn, "schedule": "1f1b"}).svg)
    found = []
    for svg in svgs:
        assert flaws(svg) == []
        found.append(
            {(words, place[0], place[2]) for words, _, place in drawn_texts(svg) if words in ("time (ms)", "40")}
        )
    assert found[0] == found[1] == found[2] and len(found[0]) == 2
    ghosts = [[one for one in paths(svg) if one.get("stroke-dasharray")] for svg in svgs]
    assert [len(found) for found in ghosts] == [0, 1, 0]
    end = float(re.search(r"H([\d.]+)V", ghosts[1][0].get("d"))[1])
    left, _, wide, _ = next(boxes(one.get("d"))[0] for one in paths(svgs[2]) if one.get("fill") == style.IDLE)
    assert end == pytest.approx(left + wide, abs=0.1)


def paths(svg):
    return [part.element for part in Film(svg).parts("path")]


def test_its_text_is_text_that_can_be_selected_and_it_shows_no_name_where_the_mouse_rests():
    inline = shown(viz.schedule_explorer())
    assert "<svg " in inline and "<img" not in inline and "<title>" not in inline
    assert "bubble 9 ms by the list" in re.sub(r"<desc>.*?</desc>", "", inline, flags=re.DOTALL)


DRAWN_ALONE = ["memory_explorer", "schedule_explorer", "zero_explorer", "planner_explorer", "causal_explorer"]


@pytest.mark.parametrize("explorer", DRAWN_ALONE)
def test_it_is_drawn_where_there_is_neither_matplotlib_nor_torch(explorer):
    blocked = "import sys; sys.modules.update(dict.fromkeys(('matplotlib', 'torch')))"
    code = f"{blocked}; from course_lib import viz; sys.exit('<svg' not in viz.{explorer}().first.svg)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


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
