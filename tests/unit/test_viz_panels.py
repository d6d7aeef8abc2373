"""Panels: the same picture by a notebook's widgets and by a page's words."""

from __future__ import annotations

import json
from xml.sax.saxutils import quoteattr

import pytest

from course_lib import viz
from course_lib.costs import GB
from course_lib.viz.pages.catalog import PANELS
from course_lib.viz.pages.front import Front
from tests.unit.moving_svg import flaws

IN_NOTEBOOKS = {
    "memory": viz.memory_explorer,
    "what_fits": viz.what_fits_explorer,
    "zero": viz.zero_explorer,
    "schedule": viz.schedule_explorer,
}


@pytest.mark.parametrize("name", IN_NOTEBOOKS)
def test_a_button_gives_the_same_words_on_both_sides(name):
    explorer, front = IN_NOTEBOOKS[name](), Front(PANELS[name]())
    assert front.state()["text"] == explorer.text
    for preset in front.panel.presets:
        explorer.presets[preset].click()
        front.press(preset)
        state = front.state()
        assert (state["text"], state["refused"]) == (explorer.text, "")
        assert {key: str(control.value) for key, control in explorer.controls.items()} == state["values"]


@pytest.mark.parametrize("name", PANELS)
def test_what_a_page_shows_has_a_name_no_tooltip_and_no_letters_of_its_own(name):
    front = Front(PANELS[name]())
    picture = front.state()["picture"]
    title = front.state()["text"].partition("\n")[0]
    assert f"aria-label={quoteattr(title)}" in picture and "<title>" not in picture
    assert "@font-face" not in picture and "'Course Sans'" in picture
    json.dumps(front.state())


def test_a_live_figure_in_a_notebook_has_a_name_for_those_who_listen():
    assert 'aria-label="Ring all-reduce on 4 ranks"' in viz.animate_ring(4).live


def test_what_fits_has_a_bar_for_each_way_and_counts_what_lesson_01_counts():
    explorer = viz.what_fits_explorer()
    explorer.controls["gpus"].value = 64
    found = explorer._panel.draw(before=None, **explorer._values())
    assert flaws(found.svg) == [] and explorer.text.count("together") == 8
    table = explorer._panel.table(**explorer._values())
    sums = dict(zip(table[0][1:], next(row for row in table if row[0] == "together")[1:], strict=True))
    states, whole = (int(sums[way].replace(",", "")) for way in ("ZeRO-3, FSDP", "no ZeRO"))
    assert whole - states > 100 * GB  # 16 bytes for each of 8 billion parameters, but for a 64th
    explorer.controls["gpus"].value, explorer.controls["tp"].value = 1, 8
    assert explorer.text == "what_fits_explorer: gpus=1, tp=8; a replica takes tp GPUs; choose tp <= 1"


def test_names_that_are_no_controls_are_left_out_and_a_refusal_keeps_the_picture():
    front = Front(PANELS["schedule"]())
    front.turn({"utm_source": "a mail", "ranks": "3"})
    assert front.state()["text"].startswith("1F1B: 3 ranks") and front.state()["off"] == ["stages_per_rank"]
    before = front.state()
    front.turn({"schedule": "interleaved", "microbatches": "7"})
    after = front.state()
    assert "choose 6 or 9" in after["refused"] and after["picture"] == before["picture"] and after["off"] == []
    front.turn({"microbatches": "6"})
    assert front.state()["refused"] == "" and front.state()["text"].startswith("interleaved: 3 ranks")
