"""The pictures of module 04: they look like the others, and say what the lists and the formulas say."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle

from course_lib import viz
from course_lib.models.mlp import MLP
from course_lib.parallel.pipeline import LABELS
from course_lib.schedules import Compute, Durations, bubble_s, idle_s, make_schedule, time_schedule
from course_lib.viz import style
from tests.unit.test_viz_pictures import drawn_texts, flaws


def schedule(name, p, m):
    return make_schedule(name, p, m, stages_per_rank=2 if name == "interleaved" else 1)


ALL = {
    "GPipe": schedule("gpipe", 4, 8),
    "1F1B": schedule("1f1b", 4, 8),
    "interleaved, 2 stages per rank": schedule("interleaved", 4, 8),
    "ZB-H1": schedule("zb-h1", 4, 8),
}
IN_MS = Durations(forward_s=1e-3, backward_input_s=1.2e-3, backward_weight_s=0.8e-3)
NAMES = ["layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"]


def owned(*ranks):
    torch.manual_seed(0)
    return viz.plot_mlp(MLP().state_dict(), owners=dict(zip(NAMES, ranks, strict=True)))


FIGURES = {
    **{
        f"schedule-{name}-{p}-{m}": lambda name=name, p=p, m=m: viz.plot_schedule(schedule(name, p, m))
        for name in ("gpipe", "1f1b", "zb-h1", "interleaved")
        for p, m in ((1, 2), (2, 2), (4, 8), (8, 16))
    },
    "schedule-naive": lambda: viz.plot_schedule(make_schedule("gpipe", 4, 1), title="Naive model parallelism"),
    "schedule-messages": lambda: viz.plot_schedule(schedule("zb-h1", 4, 8), IN_MS, message_s=2e-4),
    "schedules": lambda: viz.plot_schedules(ALL, message_s=0.1),
    "schedules-one": lambda: viz.plot_schedules({"1F1B": schedule("1f1b", 8, 16)}, IN_MS),
    "mlp-owners": lambda: owned(0, 0, 1, 1),
    "mlp-owners-four": lambda: owned(0, 1, 2, 3),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_text_is_large_within_the_margins_and_does_not_overlap(name):
    figure = FIGURES[name]().figure
    assert len(drawn_texts(figure)) >= 3
    assert list(flaws(figure)) == []


@pytest.mark.parametrize("name", ["schedule-1f1b-4-8", "schedules", "mlp-owners"])
def test_the_svg_speaks_and_is_the_same_in_every_call(name):
    picture = FIGURES[name]()
    assert picture.svg == FIGURES[name]().svg
    root = ElementTree.fromstring(picture.svg)
    assert (root[0].text, root[1].text) == (picture.title, picture.description)


def test_a_ledger_and_a_schedule_have_the_same_colours():
    assert set(LABELS.values()) < set(style.COMPUTE)


def boxes(axes, hue):
    """(left, right, rank) of each box of one hue, in its order of drawing."""
    patches = [patch for patch in axes.patches if isinstance(patch, PathPatch)]
    paths = [patch.get_path() for patch in patches if to_hex(patch.get_facecolor()) == hue.lower()]
    corners = [c for path in paths for c in path.to_polygons(closed_only=True)]
    return [(c[:, 0].min(), c[:, 0].max(), int(c[:, 1].min())) for c in corners]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("message_s", [0.0, 2e-4])
def test_every_computation_has_a_box_where_the_list_has_it(name, message_s):
    one = schedule(name, 3, 5)
    axes = viz.plot_schedule(one, IN_MS, message_s=message_s).figure.axes[1]
    slots = [s for s in time_schedule(one, IN_MS, message_s=message_s) if isinstance(s.instruction, Compute)]
    for kind, what in LABELS.items():
        want = sorted((1e3 * s.start_s, 1e3 * s.end_s, s.rank) for s in slots if type(s.instruction) is kind)
        assert sorted(boxes(axes, style.COMPUTE[what])) == [pytest.approx(box) for box in want]
    idle = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [to_hex(lane.get_facecolor()) for lane in idle] == [style.IDLE.lower()] * 3
    assert [lane.get_width() for lane in idle] == pytest.approx([1e3 * max(s.end_s for s in slots)] * 3)


@pytest.mark.parametrize(
    ("name", "p", "m", "times"),
    [("1f1b", 4, 5, 8), ("1f1b", 8, 16, 8), ("zb-h1", 8, 16, 0)],  # all boxes, those of backward alone, none
)
def test_boxes_are_numbered_as_the_lists_number_them_where_all_numbers_fit(name, p, m, times):
    words = [text for text, *_ in drawn_texts(viz.plot_schedule(schedule(name, p, m)).figure)]
    assert words.count("1") == words.count(str(m - 1)) == times


def test_a_schedule_says_its_step_its_bubble_and_who_does_what_when():
    lines = viz.plot_schedule(schedule("1f1b", 2, 2)).text.splitlines()
    assert lines == [
        "1F1B: 2 ranks, 2 micro-batches",
        "step 9 F, bubble 3 F: 33.3% of the step, 50% of the ideal time",
        "each computation with its micro-batch: F forward, BW backward",
        "  rank 0: idle 33%; computes 6 F from 0 F: F0 F1 BW0 BW1",
        "  rank 1: idle 33%; computes 6 F from 1 F: F0 BW0 F1 BW1",
    ]


def test_the_bubble_is_that_of_the_busiest_rank():
    slow = Durations(forward_s=2e-3, backward_input_s=2.4e-3, backward_weight_s=1.6e-3)
    one, durations = schedule("gpipe", 3, 4), [IN_MS, slow, IN_MS]
    slots = time_schedule(one, durations)
    text = viz.plot_schedule(one, durations).text
    step, bubble = max(slot.end_s for slot in slots), bubble_s(slots, 3)
    assert f"step {1e3 * step:.4g} ms, bubble {1e3 * bubble:.4g} ms: {100 * bubble / step:.3g}% of the step, " in text
    shares = [f"rank {rank}: idle {idle / step:.0%};" for rank, idle in enumerate(idle_s(slots, 3))]
    assert len(set(shares)) == 3 and all(share in text for share in shares)


def test_a_rank_s_stages_share_its_durations_so_that_schedules_are_comparable():
    picture = viz.plot_schedules(ALL)
    assert "  1F1B: step 33 F, bubble 9 F: 27.3% of the step, 37.5% of the ideal time\n" in picture.text
    assert "  interleaved, 2 stages per rank: step 28.5 F, bubble 4.5 F: 15.8% of the step" in picture.text
    first, *_, last = picture.figure.axes[1:]
    assert first.get_xlim() == last.get_xlim() == (0, 33)
    shades = {to_hex(patch.get_facecolor()) for patch in picture.figure.axes[3].patches}
    assert len(shades) == 5 and {hue.lower() for hue in (style.COMPUTE["forward"], style.IDLE)} < shades
    assert "paler: a rank's later stage" in {text for text, *_ in drawn_texts(picture.figure)}


def test_a_long_list_is_counted():
    assert (
        "computes 48 F from 1.75 F: 128 computations"
        in viz.plot_schedule(make_schedule("interleaved", 8, 16, stages_per_rank=4)).text
    )


def test_messages_that_take_time_are_strips_below_their_senders():
    one = schedule("gpipe", 2, 2)
    sends = [(1, 1.5, 0), (2, 2.5, 0), (5.5, 6, 1), (7.5, 8, 1)]
    axes = viz.plot_schedule(one, message_s=0.5).figure.axes[1]
    assert sorted(boxes(axes, style.COMMUNICATION)) == sends
    assert boxes(viz.plot_schedule(one).figure.axes[1], style.COMMUNICATION) == []


def test_owners_are_frames_in_their_ranks_hues_and_a_line_at_the_cut():
    picture = owned(0, 0, 1, 1)
    page = picture.figure.axes[0]
    frames = [to_hex(box.get_edgecolor()) for box in page.findobj(FancyBboxPatch) if box.get_linewidth() == 2.6]
    assert frames == [style.rank_hue(rank).lower() for rank in (0, 0, 1, 1)]
    assert len(page.lines) == 1
    assert picture.text.endswith(
        "rank 0 stores 28 numbers: layer1.weight, layer1.bias\nrank 1 stores 10 numbers: layer2.weight, layer2.bias"
    )
    assert {"28 numbers", "10 numbers"} < {text for text, *_ in drawn_texts(picture.figure)}


def test_without_owners_the_perceptron_has_no_frames_and_no_cut():
    torch.manual_seed(0)
    page = viz.plot_mlp(MLP().state_dict()).figure.axes[0]
    assert page.lines[:] == [] and all(box.get_linewidth() < 2 for box in page.findobj(FancyBboxPatch))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: viz.plot_schedule(schedule("gpipe", 9, 1)),
            r"^plot_schedule: 9 ranks; this picture holds 1 to 8 ranks; draw a smaller pipeline",
        ),
        (
            lambda: viz.plot_schedule(schedule("interleaved", 2, 2), [IN_MS] * 4),
            r"^plot_schedule: 4 durations, 2 ranks; each rank has its own; give one for each rank, or one for all",
        ),
        (lambda: viz.plot_schedules({}), r"^plot_schedules: 0 schedules; this picture holds 1 to 6; draw two pictures"),
        (
            lambda: owned(0, 0, 1, -1),
            r"^plot_mlp: owners=\{.*\}; each parameter lies on one rank, 0 or later; say it for layer1.weight, ",
        ),
        (
            lambda: viz.plot_mlp(MLP().state_dict(), owners={"layer1.weight": 0}),
            r"^plot_mlp: owners=\{'layer1.weight': 0\}; each parameter .*, layer2.bias",
        ),
    ],
)
def test_bad_input_is_refused_in_four_parts(call, message):
    with pytest.raises(ValueError, match=message):
        call()
