"""The pictures of module 05: they look like the others, and say what the cuts and the ladder say."""

from __future__ import annotations

import math
import re
from itertools import product
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from course_lib.costs import chain_partition
from course_lib.viz import plot_heads, plot_ladder, plot_late_sum, plot_loss_curves, plot_loss_differences, plot_pair
from course_lib.viz.ink.style import IDLE, PANEL, RUN_HUES, rank_hue
from tests.unit.test_viz_pictures import drawn_texts, flaws

RUNGS = {"output": 6e-16, "gradients": 0.0, "gradient norm": 2e-13, "AdamW": 1e-11}
LOSSES = {"one device": [5.0, 4.0, 3.0], "run A": [5.0, 4.001, 3.1], "run B": [5.0, 4.0, math.nan]}
PAIRS = tuple(product(("column", "row"), repeat=2))
FIGURES = {
    **{f"pair-{first}-{second}": lambda cuts=(first, second): plot_pair(*cuts) for first, second in PAIRS},
    "late-sum": plot_late_sum,
    "heads": plot_heads,
    "differences": lambda: plot_loss_differences(LOSSES),
    "ladder": lambda: plot_ladder(RUNGS, tolerance=1e-11),
    "ladder-one": lambda: plot_ladder({"output": 0.0}, tolerance=1e-5),
    "ladder-fallen": lambda: plot_ladder(RUNGS | {"save and load": 0.3}, tolerance=1e-11),
}


def boxes_of(picture):
    return picture.figure.axes[0].findobj(FancyBboxPatch)


@pytest.mark.parametrize("name", FIGURES)
def test_the_text_is_large_within_the_margins_and_does_not_overlap(name):
    figure = FIGURES[name]().figure
    assert len(drawn_texts(figure)) >= 3
    assert list(flaws(figure)) == []


@pytest.mark.parametrize("name", ["pair-column-row", "late-sum", "heads", "differences", "ladder"])
def test_the_svg_speaks_and_is_the_same_in_every_call(name):
    picture = FIGURES[name]()
    assert picture.svg == FIGURES[name]().svg
    root = ElementTree.fromstring(picture.svg)
    assert (root[0].text, root[1].text) == (picture.title, picture.description)


@pytest.mark.parametrize(("cuts", "each"), [*zip(PAIRS, (19, 20, 21, 20), strict=True)])
def test_a_rank_s_parameters_are_counted_and_coloured(cuts, each):
    """Beside them, in its colour: what its products give, and of what it sees afterwards what it made alone.

    A bias that both ranks have whole has neither's colour.
    """
    picture = plot_pair(*cuts)
    assert [text for text, _, _ in drawn_texts(picture.figure) if "of 38" in text] == [f"{each} of 38"] * 2
    cells = [
        box
        for box in boxes_of(picture)
        if box.get_height() == pytest.approx(box.get_width()) and to_hex(box.get_facecolor()) == rank_hue(0).lower()
    ]
    made = {"column": 2, "row": 4}[cuts[0]] + {"column": 1, "row": 2}[cuts[1]]
    seen = {
        ("column", "column"): 2 + 2 + 1 + 1,  # gathered: on both ranks
        ("column", "row"): 2,  # the hidden numbers behind the GELU
        ("row", "column"): 1 + 1,
        ("row", "row"): 0,  # sums only
    }[cuts]
    on_both = {("column", "row"): 2, ("row", "column"): 4, ("row", "row"): 2}.get(cuts, 0)
    assert len(cells) == each + made + seen - on_both


@pytest.mark.parametrize("cuts", PAIRS)
def test_the_ranks_talk_where_the_formula_says(cuts):
    of_chain = {"column": "out", "row": "in"}
    passages = chain_partition((6, 4, 2), [of_chain[cut] for cut in cuts], tp=2).passages
    numbers = [passage.forward_cost.sent_bytes[0] // 4 for passage in passages[1:]]
    sends = [f"each sends {number} number{'s' * (number != 1)} a sample" for number in numbers]
    talks = [f"{passage.forward}, {sent}" for passage, sent in zip(passages[1:], sends, strict=True)]
    middle, end = (talk.replace("nothing, each sends 0 numbers a sample", "nothing is sent") for talk in talks)
    picture = plot_pair(*cuts)
    assert picture.description.endswith(f"between them: {middle}; at the end: {end}")
    written = [text for text, _, _ in drawn_texts(picture.figure) if text.startswith("each sends")]
    assert sorted(written) == sorted(sent for sent in sends if " 0 " not in sent)


def test_the_key_names_sums_where_there_are_some():
    """After an all-gather the other rank's numbers stand on a rank: a colour says who made them, not who has them."""
    for cuts in PAIRS:
        words = [text for text, _, _ in drawn_texts(plot_pair(*cuts).figure)]
        assert {"kept or made by rank 0", "by rank 1"} <= set(words)
        assert ("made of both ranks' terms" in words) == ("row" in cuts)


@pytest.mark.parametrize("cuts", PAIRS)
def test_each_rank_has_all_of_x_and_what_it_does_not_read_is_pale(cuts):
    picture = plot_pair(*cuts)
    words = [text for text, _, _ in drawn_texts(picture.figure)]
    pale = [box for box in boxes_of(picture) if to_hex(box.get_facecolor(), keep_alpha=True) == IDLE.lower()]
    assert ("here, not read" in words) == (cuts[0] == "row")
    assert len(pale) == (2 * 3 + 1 if cuts[0] == "row" else 0)  # of six numbers on two ranks, and in the key


OUTLINED = {  # of each rank: matrices, biases and vectors of which the other rank has the rest
    "pair-column-column": 6,
    "pair-column-row": 5,
    "pair-row-column": 4,
    "pair-row-row": 4,
    "late-sum": 1,
    "heads": 8,
}


@pytest.mark.parametrize("name", OUTLINED)
def test_what_a_rank_has_not_is_one_empty_outline_and_no_number(name):
    boxes = boxes_of(FIGURES[name]())
    outlines = [box for box in boxes if box.get_linestyle() not in ("solid", "-")]
    assert len(outlines) == 2 * OUTLINED[name] + 1  # and one in the key
    assert {box.get_facecolor()[3] for box in outlines} == {0.0}  # nothing in them
    assert not [box for box in boxes if to_hex(box.get_facecolor(), keep_alpha=True) == PANEL.lower()]


def test_a_late_sum_sends_at_the_end_alone_and_is_crossed_at_the_bend():
    picture = plot_late_sum()
    assert picture.description.endswith(
        "between them: nothing is sent; at the end: all_reduce, each sends 2 numbers a sample"
    )
    words = [text for text, _, _ in drawn_texts(picture.figure)]
    assert words.count("26 of 38") == words.count("½ b₁") == words.count("½ b₂") == 2  # all of W₂ and of both biases
    page = picture.figure.axes[0]
    places = {text: box[0] for text, _, box in drawn_texts(picture.figure)}
    crosses = [sum(line.get_xdata()) / 2 for line in page.lines]
    assert len(crosses) == 4 and all(places["½ b₁"] < x < places["after GELU"] for x in crosses)


def test_the_bias_of_a_row_parallel_matrix_is_behind_the_sum():
    """Beside the matrix each rank would add it to its term."""
    for first, second in PAIRS:
        places = {text: box[0] for text, _, box in drawn_texts(plot_pair(first, second).figure)}
        bars = sorted(box[0] for text, _, box in drawn_texts(plot_pair(first, second).figure) if "all_" in text)
        assert (places["b₂"] > bars[-1]) == (second == "row")
        assert (places["b₁"] > places["after GELU"] - 0.6) == (first == "row")


def test_heads_are_cut_as_the_third_attempt_and_have_no_biases():
    words = [text for text, _, _ in drawn_texts(plot_heads().figure)]
    assert words.count("2 heads") == words.count("softmax") == words.count("k_proj") == 2 and "b₁" not in words
    assert plot_heads().description.endswith("before the end: nothing is sent; at the end: all_reduce")


def test_differences_are_those_from_the_first_run():
    picture = plot_loss_differences(LOSSES)
    first, second = (line for line in picture.figure.axes[1].lines if list(line.get_xdata()) == [1, 2, 3])
    assert first.get_ydata() == pytest.approx([1e-7, 1e-3, 0.1])
    assert list(second.get_ydata())[:2] == [1e-7, 1e-7]
    ticks = [tick.get_text() for tick in picture.figure.axes[1].get_yticklabels()]
    assert "; what is below 1e-07 is drawn at 1e-07" in picture.description
    assert {"1e-07", "1e-05", "1e-03"} <= set(ticks) and picture.title.startswith(
        "How far each run's loss is from that"
    )
    with pytest.raises(ValueError, match="plot_loss_differences: 1 curve; each run is compared with the first; give"):
        plot_loss_differences({"one device": [1.0]})


def test_the_run_that_others_are_judged_by_lies_broad_beneath_them():
    *_, judge = LOSSES
    picture = plot_loss_differences(LOSSES, beside=judge)
    broad, *others = (line for line in picture.figure.axes[1].lines if list(line.get_xdata()) == [1, 2, 3])
    assert all(broad.get_linewidth() > 3 * line.get_linewidth() for line in others) and len(others) == len(LOSSES) - 2
    with pytest.raises(ValueError, match="beside 'nobody'; the runs compared are .*; name one of them"):
        plot_loss_differences(LOSSES, beside="nobody")


def test_a_run_looks_alike_in_its_curve_and_in_its_difference():
    for plot in (plot_loss_curves, plot_loss_differences):
        lines = [line for line in plot(LOSSES).figure.axes[1].lines if list(line.get_xdata()) == [1, 2, 3]]
        looks = [(line.get_color(), line.is_dashed()) for line in lines[-2:]]
        assert looks == [(RUN_HUES[1], False), (RUN_HUES[2], True)]


def test_a_ladder_says_which_rungs_hold():
    sound, fallen = plot_ladder(RUNGS, tolerance=1e-11), plot_ladder(RUNGS, tolerance=1e-12)
    assert sound.title == "On every rung equal to one device (measured)"
    assert fallen.title == "The ranks are not one device (measured)"
    texts = [text for text, _, _ in drawn_texts(fallen.figure)]
    assert [text for text in texts if re.match("equal|apart", text)] == [
        "apart, 1e-11",
        "equal, 2e-13",
        "equal, 0",
        "equal, 6e-16",
    ]
    assert {"4", "AdamW", "1", "output", "tolerance 1e-12"} <= set(texts)


def test_a_ladder_s_names_begin_below_each_other():
    lefts = {text: box[0] for text, _, box in drawn_texts(plot_ladder(RUNGS, tolerance=1e-11).figure)}
    begins = [lefts[name] for name in RUNGS]
    assert max(begins) - min(begins) < 0.03  # inches; the digit 1 is narrower than the others


def test_a_dot_is_left_of_the_tolerance_where_its_rung_holds():
    axes = plot_ladder(RUNGS, tolerance=1e-12).figure.axes[0]
    dots = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    (tolerance,) = {line.get_xdata()[0] for line in axes.lines if line.is_dashed()}
    assert [dot < tolerance for dot in dots] == [False, True, True, True]
    named = {text for text, _, _ in drawn_texts(plot_ladder(RUNGS, tolerance=1e-11).figure)}
    assert {"1e-15", "1e-13"} <= named
    assert sorted(dots, reverse=True)[:2] == dots[:2] and min(dots) == dots[2]


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="^plot_pair: 'diagonal'; a matrix is cut by outputs or by inputs; choose"):
        plot_pair("diagonal", "row")
    with pytest.raises(ValueError, match="^plot_ladder: 0 rungs, tolerance=1e-11; there is a rung"):
        plot_ladder({}, tolerance=1e-11)
    with pytest.raises(ValueError, match="tolerance=0; "):
        plot_ladder(RUNGS, tolerance=0)
