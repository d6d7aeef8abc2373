"""What a figure wears: a formula's numbers, emulated times, or what was measured; drawn, and in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.patches import FancyBboxPatch, Wedge

from course_lib import viz
from course_lib.comm.ledger import Ledger
from course_lib.hardware import INFINIBAND
from course_lib.schedules import make_schedule
from course_lib.viz.ink.kinds import KINDS
from tests.unit.moving_svg import Film
from tests.unit.test_viz_pictures import drawn_texts, flaws
from tests.unit.viz_ledgers import one_message, ring_ledger


def on_the_clock(ledger):
    return Ledger([replace(event, emulated=True) for event in ledger.events], ledger.world_size)


SHARES = {"a": {1: 0.9, 2: 0.8}}
WORN = {
    "lines": (lambda: viz.plot_cost_lines(["ring"], world_size=4, link=INFINIBAND), ["formula"]),
    "ledger": (lambda: viz.plot_timeline(one_message()), ["measured"]),
    "clock": (lambda: viz.plot_timeline(on_the_clock(one_message())), ["emulated"]),
    "bytes on the clock": (lambda: viz.plot_bytes_matrix(on_the_clock(ring_ledger(3))), ["measured"]),
    "overlap": (lambda: viz.plot_overlap({"a": one_message(), "b": on_the_clock(one_message())}), KINDS[:0:-1]),
    "paper alone": (lambda: viz.plot_idle(SHARES), ["formula"]),
    "marks alone": (lambda: viz.plot_idle({}, SHARES), ["measured"]),
    "both": (lambda: viz.plot_scaling(SHARES, SHARES, marks="emulated"), ["formula", "emulated"]),
    "diagram": (lambda: viz.who_holds_what("broadcast"), []),
}


@pytest.mark.parametrize("name", WORN)
def test_a_figure_wears_what_its_numbers_are(name):
    draw, kinds = WORN[name]
    picture = draw()
    words = [text for text, *_ in drawn_texts(picture.figure)]
    assert [word for word in words if word in KINDS] == list(kinds)
    first = picture.text.splitlines()[0]
    assert first.endswith(f" ({' and '.join(kinds)})") if kinds else not first.endswith(")")
    assert f"<title>{first}</title>" in picture.svg


def test_a_dot_is_open_half_full_or_full():
    def wedges(picture):
        return [part.theta2 - part.theta1 for part in picture.figure.axes[0].patches if isinstance(part, Wedge)]

    assert wedges(WORN["lines"][0]()) == []
    assert wedges(WORN["clock"][0]()) == [180]
    assert wedges(WORN["ledger"][0]()) == [360]


def test_a_badge_has_no_ground_of_its_own_which_would_glare_on_a_dark_page():
    shapes = viz.plot_idle(SHARES).figure.axes[0].patches
    badges = [shape for shape in shapes if isinstance(shape, FancyBboxPatch) and shape.get_height() == 0.27]
    assert [badge.get_facecolor()[3] for badge in badges] == [0]
    pills = [part.element for part in Film(viz.plot_schedule(make_schedule("gpipe", 2, 2)).svg).parts("rect")]
    assert [pill.get("fill") for pill in pills if pill.get("rx") == "12" and pill.get("height") == "24"] == ["none"]


@pytest.mark.parametrize("length", [20, 48, 56, 60])
def test_badges_and_title_make_room_for_each_other(length):
    title = ("title of a figure that has very much to say about it all " * 2)[:length]
    figure = viz.plot_scaling(SHARES, SHARES, marks="emulated", title=title).figure
    assert [flaw for flaw in flaws(figure) if not flaw.startswith("outside: ")] == []
    (badge, *_), top = (
        [box for text, _, box in drawn_texts(figure) if text == wanted] for wanted in ("emulated", title)
    )
    assert badge[0] > top[0][2] or top[0][3] < badge[1] < badge[3] < figure.get_size_inches()[1] - 0.1
