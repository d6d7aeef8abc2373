"""The pictures of module 10: prices, wires, bowls, memories, dice and opinions."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from course_lib import costs, less, viz
from course_lib.costs.comm.less import Synchronisation
from course_lib.hardware import BETWEEN_CITIES, INFINIBAND, NVLINK, TEN_GIGABIT
from course_lib.viz.ink import style
from tests.unit import moving_svg, test_viz_pictures
from tests.unit.moving_svg import Film, boxes

LINKS = [NVLINK, INFINIBAND, TEN_GIGABIT, BETWEEN_CITIES]
LOSSES = {
    "all": {0: 2.4, 50: 1.4, 100: 1.1, 150: 1.0},
    "a hundredth": {0: 2.4, 50: 1.6, 100: 1.2, 150: 1.0},
    "nothing": {0: 2.4, 50: 2.2, 100: 2.1, 150: 2.0},
}
PRICES = {
    "all": Synchronisation(method="all", cost=costs.sum_time(10**8, itemsize=4, ranks=8)),
    "a hundredth": Synchronisation(method="part", cost=costs.sum_time(10**6, itemsize=4, ranks=8)),
    "nothing": Synchronisation(method="none", cost=costs.sum_time(1, itemsize=4, ranks=8)),
}
GATHERED = torch.ones(12, 4, dtype=torch.float64) * torch.tensor([4.5, 1.0, 0.0, 0.0])
OPINIONS = [(7 * rank % 16) / 4 for rank in range(16)]


def three_prices(losses=LOSSES):
    return viz.plot_three_prices(losses, PRICES, link=BETWEEN_CITIES, computing_s=0.5, goal=1.05)


def texts_of(picture):
    assert list(test_viz_pictures.flaws(picture.figure)) == []
    return [text for text, *_ in test_viz_pictures.drawn_texts(picture.figure)]


def words_of(picture):
    assert moving_svg.flaws(picture.svg) == []
    return [words for words, *_ in moving_svg.drawn_texts(picture.svg)]


def test_the_order_by_steps_turns_round_on_the_slow_wire_and_who_never_arrives_is_last():
    picture = three_prices()
    by_steps, by_bytes, by_hours = picture.description.splitlines()[1:]
    assert [re.findall("all|a hundredth|nothing", line) for line in (by_steps, by_bytes, by_hours)] == [
        ["all", "a hundredth", "nothing"],
        ["a hundredth", "all", "nothing"],
        ["a hundredth", "all", "nothing"],
    ]
    assert picture.kinds == ("measured", "formula")
    texts = texts_of(picture)
    assert texts.count("never") == 3 and {"125", "138", "steps", "bytes", "hours"} <= {*texts}
    for name, steps in (("all", 125.0), ("a hundredth", 137.5)):
        cost = PRICES[name].cost
        assert f"{steps * max(cost.sent_bytes) / 1e9:,.3g} GB" in texts
        assert f"{steps * (0.5 + cost.time_s(BETWEEN_CITIES)) / 3600:.2g} h" in texts


def test_the_goal_is_met_between_two_looks_or_never():
    assert [less.steps_to(curve, 1.05) for curve in LOSSES.values()] == pytest.approx([125, 137.5, None])
    assert less.steps_to({0: 1.0, 10: 0.5}, 2.0) == 0


def test_every_method_has_its_dots_where_the_seconds_are():
    rows = costs.one_synchronisation(costs.load_model("llama_7b"), ranks=64)[::3]
    picture = viz.plot_wires(rows, LINKS, computing_s=1.72)
    texts = texts_of(picture)
    assert {row.method for row in rows} | {link.name for link in LINKS} <= {*texts}
    dots = [line for line in picture.figure.axes[1].lines if line.get_marker() == "o"]
    drawn = [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots]
    expected = [(row.seconds_a_step(link), place) for place, row in enumerate(rows) for link in LINKS]
    assert len(drawn) == len(expected) > 4
    assert np.allclose(drawn, expected)
    assert picture.kinds == ("formula",)


def test_bowls_show_where_each_mean_ends():
    drifts = [less.drift(every, steps=192) for every in (1, 8, 64)]
    picture = viz.plot_drift(drifts)
    texts = texts_of(picture)
    assert {"H = 1", "H = 8", "H = 64"} < {*texts}
    assert all(f"ends {one.off:.1g} from the optimum" in texts for one in drifts)
    ways = [[line for line in chart.lines if len(line.get_xdata()) > 30] for chart in picture.figure.axes[1:]]
    assert all(len(lines) >= 2 for lines in ways)
    assert np.allclose(np.transpose(ways[2][0].get_data()), drifts[2].paths[0])


def test_bars_of_a_followed_number_are_as_high_as_its_values_on_one_scale():
    followed = less.follow_number(less.top_k(0.25), GATHERED, place=1)
    picture = viz.plot_residual(followed)
    words_of(picture)
    tall = {
        part.element.get("fill"): [round(height, 1) for *_, height in boxes(part.element.get("d"))]
        for part in Film(picture.svg).parts("path")
    }
    unit = tall[style.COMPUTE["backward"]][0]
    assert tall[style.COMPUTE["backward"]] == [unit] * 12
    assert tall[style.COMMUNICATION] == pytest.approx([5 * unit] * 2, abs=0.5)
    assert tall[style.OTHER_COMPUTE] == pytest.approx([unit * kept for kept in followed.kept if kept], abs=0.5)
    assert "of 12 that came in 12 steps 10 were sent and 2 are kept" in picture.description


def test_dice_say_each_level_s_chance_and_are_right_on_average():
    picture = viz.plot_dice(4, [0.0, 0.31, 0.5, 1.0])
    words = words_of(picture)
    assert {"76% become level 1", "24% become level 2", "100% become level 4", "100% become level 2"} <= {*words}
    assert re.findall(r"on average ([\d.]+)", picture.description) == ["0", "0.31", "0.5", "1"]


def test_opinions_move_from_where_they_began_to_where_gossip_leads():
    topologies = ["ring", "grid", "one_peer_exponential", "complete"]
    picture = viz.animate_consensus(topologies, OPINIONS, steps=4)
    assert words_of(picture).count("all alike") == 2
    film = Film(picture.svg)
    dots = [part for part in film.parts("path") if part.element.get("class")]
    assert len(dots) == 4 * 16
    heights = [float(re.match(r"M[-\d.]+ ([-\d.]+)", dot.element.get("d"))[1]) for dot in dots]
    firsts = [height + film.lift(dot, 0.0) for dot, height in zip(dots, heights, strict=True)]
    scale = (firsts[1] - firsts[0]) / (OPINIONS[1] - OPINIONS[0])
    for place, topology in enumerate(topologies):
        last = less.opinions(topology, OPINIONS, 4)[-1]
        for worker, (first, held) in enumerate(zip(OPINIONS, last, strict=True)):
            moved = heights[16 * place + worker] - firsts[16 * place + worker]
            assert moved == pytest.approx(scale * (held - first), abs=0.3)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: three_prices({}), "plot_three_prices: 0 methods; .*; leave some out"),
        (lambda: three_prices({"all": {0: 1.0}}), "no look at all after its first step; .*; give losses by step"),
        (
            lambda: three_prices({"more": {0: 2.0, 9: 1.0}}),
            "plot_three_prices: no price of more; .*; give a Synchronisation",
        ),
        (lambda: viz.plot_wires([], LINKS, computing_s=1), "plot_wires: 0 methods, 4 wires; .*; give rows"),
        (lambda: viz.plot_drift([]), "plot_drift: 0 drifts; .*; give drift"),
        (
            lambda: viz.plot_residual(less.follow_number(less.top_k(1), torch.ones(61, 2), 0)),
            "61 steps; .*; follow fewer",
        ),
        (lambda: viz.plot_dice(9, [0.5]), "plot_dice: levels=9, 1 numbers; .*; give fewer"),
        (lambda: viz.plot_dice(4, [1.5]), r"plot_dice: shares 1.5; .*; give \|x\| / norm"),
        (lambda: viz.animate_consensus(["ring"], [1.0], 4), "1 topologies, 1 workers, steps=4; .*; give fewer"),
    ],
)
def test_what_cannot_be_drawn_says_what_can(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
