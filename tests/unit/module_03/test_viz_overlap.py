"""Timelines in which a rank computes while it communicates, alone and several on one time axis."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex

from course_lib import viz
from course_lib.comm.ledger import Event, Ledger
from course_lib.viz.ink import style
from tests.unit.test_viz_pictures import drawn_texts, flaws
from tests.unit.viz_ledgers import ring_ledger


def data_parallel_step(starts, ranks=2):
    """1 ms forward, 2 ms backward for each of two layers, calls of 1.5 ms that begin at `starts` (ms), 1 ms update."""
    events = []
    for r in range(ranks):
        compute = [("forward", 0, 1), ("backward", 1, 3), ("backward", 3, 5)]
        compute.append(("optimizer", starts[-1] + 1.5, starts[-1] + 2.5))
        for label, start, end in compute:
            events.append(Event(rank=r, kind="compute", operation=label, start_s=7 + start / 1e3, end_s=7 + end / 1e3))
        for call, start in enumerate(starts, start=3):
            what = {"rank": r, "nbytes": 64, "operation": "all_reduce", "algorithm": "ring", "call": call}
            times = {"start_s": 7 + start / 1e3, "end_s": 7 + (start + 1.5) / 1e3}
            events += [Event(kind=kind, peer=1 - r, **what, **times) for kind in ("send", "recv")]
    return Ledger(events, ranks)


IN_TURN, OVERLAPPED = data_parallel_step([5, 6.5]), data_parallel_step([3, 5])
FIGURES = {
    "overlap": lambda: viz.plot_overlap({"in turn": IN_TURN, "overlapped": OVERLAPPED}),
    "overlap-four": lambda: viz.plot_overlap(
        {f"way {k}": ring_ledger(4, calls=3, compute=True) for k in range(4)}, rank=3
    ),
    "overlap-alone": lambda: viz.plot_overlap({"one device": ring_ledger(1)}),
    "timeline-overlapped": lambda: viz.plot_timeline(OVERLAPPED),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_picture_is_legible_and_speaks_and_is_the_same_in_every_call(name):
    picture = FIGURES[name]()
    assert list(flaws(picture.figure)) == []
    assert picture.svg == FIGURES[name]().svg
    root = ElementTree.fromstring(picture.svg)
    assert (root[0].text, root[1].text) == (picture.title, picture.description)


def rectangles(axes, hue):
    """(left, right, top, bottom) of each bar of one hue."""
    paths = [patch.get_path() for patch in axes.patches if to_hex(patch.get_facecolor()) == hue[:7].lower()]
    corners = [c for path in paths for c in path.to_polygons(closed_only=True)]
    return [(c[:, 0].min(), c[:, 0].max(), c[:, 1].min(), c[:, 1].max()) for c in corners]


def times(axes, hue):
    """Left and right of each bar of one hue, one after the other."""
    return [time for bar in rectangles(axes, hue) for time in bar[:2]]


def test_calls_are_named_in_the_key():
    picture = viz.plot_overlap({"in turn": IN_TURN}, calls=("first sum", "second sum"))
    said = "bar 1: first sum; bar 2: second sum"
    assert said in [words for words, _, _ in drawn_texts(picture.figure)]
    assert f"; {said}" in picture.description and list(flaws(picture.figure)) == []


def test_overlap_draws_all_runs_on_one_time_axis_with_the_end_of_each():
    picture = viz.plot_overlap({"in turn": IN_TURN, "overlapped": OVERLAPPED})
    in_turn, overlapped = picture.figure.axes[1:]
    assert in_turn.get_xlim() == overlapped.get_xlim() == (0, 9)
    assert [axes.lines[0].get_xdata()[0] for axes in (in_turn, overlapped)] == [9, 7.5]
    assert times(overlapped, style.COMMUNICATION) == pytest.approx([3, 4.5, 5, 6.5])
    assert times(in_turn, style.IDLE) == pytest.approx([5, 8])
    assert times(overlapped, style.COMPUTE["backward"]) == pytest.approx([1, 3, 3, 5])
    assert {"9 ms", "7.5 ms", "1.2 × as fast"} <= {words for words, _, _ in drawn_texts(picture.figure)}
    slower = viz.plot_overlap({"overlapped": OVERLAPPED, "in turn": IN_TURN})
    assert {"9 ms", "1.2 × as long"} <= {words for words, _, _ in drawn_texts(slower.figure)}


def test_overlap_says_how_much_of_communication_is_hidden():
    lines = viz.plot_overlap({"in turn": IN_TURN, "overlapped": OVERLAPPED}, rank=1).text.splitlines()
    assert lines[1] == "rank 1; the line is the end of the step on the slowest rank"
    assert lines[2].endswith("step 9 ms; computes 6 ms, waits 3 ms; 2 calls 3 ms, of them 0 s while computing")
    assert lines[3].endswith("step 7.5 ms; computes 6 ms, waits 1.5 ms; 2 calls 3 ms, of them 1.5 ms while computing")


def test_calls_are_counted_and_numbered_if_all_the_numbers_fit():
    many = data_parallel_step([5 + 1.5 * call for call in range(40)])
    words = [text for text, _, _ in drawn_texts(viz.plot_overlap({"few": IN_TURN}).figure)]
    assert words.index("1") < words.index("2") and "2 calls" in words
    crowded = [text for text, _, _ in drawn_texts(viz.plot_overlap({"many": many}).figure)]
    assert "40 calls" in crowded and "1" not in crowded


def test_an_emulated_clock_s_rounding_errors_do_not_change_the_picture():
    moved = [
        dataclasses.replace(event, start_s=event.start_s - 7 + 1e-12, end_s=event.end_s - 7) for event in IN_TURN.events
    ]
    assert viz.plot_overlap({"a": Ledger(moved, 2)}).svg == viz.plot_overlap({"a": IN_TURN}).svg


def test_a_timeline_sets_computing_beside_the_messages_only_where_they_meet():
    backward = style.COMPUTE["backward"]
    high = [bar[3] - bar[2] for bar in rectangles(viz.plot_timeline(IN_TURN).figure.axes[1], backward)]
    assert high == pytest.approx([0.84] * 4)
    axes = viz.plot_timeline(OVERLAPPED).figure.axes[1]
    lowest = max(bar[3] for bar in rectangles(axes, backward) if bar[3] < 1)
    assert lowest < min(bar[2] for bar in rectangles(axes, style.COMMUNICATION))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.plot_overlap({}), r"plot_overlap: 0 timelines; this picture holds 1 to 4; draw two pictures"),
        (
            lambda: viz.plot_overlap({"a": Ledger([], 2)}),
            r"plot_overlap: 'a' has 0 events on 2 ranks, rank=0; a timeline needs events, .*; pass ledger\(\)",
        ),
        (
            lambda: viz.plot_overlap({"a": IN_TURN}, rank=2),
            r"plot_overlap: 'a' has 16 events on 2 ranks, rank=2; .*; pass",
        ),
    ],
)
def test_bad_input_is_refused_in_four_parts(call, message):
    with pytest.raises(ValueError, match=message):
        call()
