"""Lanes of pipelines, read back from their SVG: each box stands where the list has it, numbered where there is room."""

from __future__ import annotations

import pytest

from course_lib import viz
from course_lib.schedules import LABELS, Compute, Durations, time_schedule
from course_lib.viz.ink import style
from tests.unit import moving_svg
from tests.unit.module_04.test_viz_module_04 import ALL, FIGURES, IN_MS, run_picture, schedule
from tests.unit.moving_svg import Film


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith(("schedule", "run"))])
def test_the_text_of_lanes_is_large_within_the_margins_and_does_not_overlap(name):
    svg = FIGURES[name]().svg
    assert len(words_in(svg)) >= 3
    assert moving_svg.flaws(svg) == []


def words_in(svg):
    return [words for words, *_ in moving_svg.drawn_texts(svg)]


def runs_in(svg):
    """For each run of the figure the ground of its lanes, and by hue its boxes: left, top, width, height."""
    paths = [part.element for part in Film(svg).parts("path")]
    found = [(one.get("fill").lower(), moving_svg.boxes(one.get("d"))) for one in paths]
    starts = [number for number, (hue, boxes) in enumerate(found) if hue == style.IDLE.lower() and boxes]
    for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
        yield found[start][1], dict(found[start + 1 : end])


def shares(ground, boxes):
    """(start, end, rank) of boxes, in shares of the longest lane on the card."""
    left, top, wide, tall = ground[0]
    return sorted(
        ((x - left) / wide, (x + w - left) / wide, int((y - top) / (tall / 0.9) + 0.01)) for x, y, w, _ in boxes
    )


def words_on_and_below(svg):
    """What is written on the lanes of a figure with one run, and below them."""
    ((ground, _),) = runs_in(svg)
    foot = ground[-1][1] + ground[-1][3]
    texts = [(words, place) for words, _, place in moving_svg.drawn_texts(svg) if place[0] >= ground[0][0] - 20]
    on = [words for words, place in texts if ground[0][1] < place[1] and place[3] < foot]
    return on, [words for words, place in sorted(texts, key=lambda one: one[1][0]) if place[1] > foot]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("message_s", [0.0, 2e-4])
def test_every_computation_has_a_box_where_the_list_has_it(name, message_s):
    one = schedule(name, 3, 5)
    ((ground, boxes),) = runs_in(viz.plot_schedule(one, IN_MS, message_s=message_s).svg)
    slots = [s for s in time_schedule(one, IN_MS, message_s=message_s) if isinstance(s.instruction, Compute)]
    end = max(slot.end_s for slot in slots)
    for kind, what in LABELS.items():
        want = sorted((s.start_s / end, s.end_s / end, s.rank) for s in slots if type(s.instruction) is kind)
        drawn_there = shares(ground, boxes.get(style.COMPUTE[what].lower(), []))
        assert drawn_there == [pytest.approx(box, abs=1e-4) for box in want]
    assert len({lane[2] for lane in ground}) == 1 and len(ground) == 3


@pytest.mark.parametrize(
    ("name", "p", "m", "times"),
    [  # all boxes, also narrow ones; those of backward alone; none
        ("1f1b", 4, 5, 8),
        ("interleaved", 4, 8, 16),
        ("1f1b", 4, 16, 4),
        ("zb-h1", 8, 32, 0),
    ],
)
def test_boxes_are_numbered_as_the_lists_number_them_where_all_numbers_fit(name, p, m, times):
    words, _ = words_on_and_below(viz.plot_schedule(schedule(name, p, m)).svg)
    assert words.count("1") == words.count(str(m - 1)) == times


@pytest.mark.parametrize(
    ("name", "m", "times"),
    [
        ("1f1b", 8, "0 5 10 15 20 25 30 33"),
        ("interleaved", 8, "0 5 10 15 20 25 28.5"),
        ("1f1b", 9, "0 5 10 15 20 25 30 36"),
    ],
)
def test_the_axis_says_when_the_step_ends_in_place_of_the_times_without_room_beside_it(name, m, times):
    svg = viz.plot_schedule(schedule(name, 4, m)).svg
    _, below = words_on_and_below(svg)
    assert [words for words in below if "time" not in words] == times.split()
    ((ground, _),) = runs_in(svg)
    end = float(times.split()[-1])
    places = {words: (place[0] + place[2]) / 2 for words, _, place in moving_svg.drawn_texts(svg)}
    for time in times.split()[-2:]:
        x = ground[0][0] + ground[0][2] * float(time) / end
        assert places[time] == pytest.approx(x, abs=0.1)


def test_a_schedule_is_built_up_in_the_room_of_the_whole():
    whole, begun = viz.plot_schedule(ALL["1F1B"], IN_MS), viz.plot_schedule(ALL["1F1B"], IN_MS, upto_s=8.4e-3)
    ((ground, boxes),), ((later, every),) = runs_in(begun.svg), runs_in(whole.svg)
    assert [lane[:2] for lane in ground] == [lane[:2] for lane in later]
    end = ground[0][0] + ground[0][2] + 0.01
    assert boxes == {hue: [box for box in some if box[0] + box[2] <= end] for hue, some in every.items()}
    words = words_in(begun.svg)
    assert "idle" in words and not any("%" in word for word in words)  # in the legend, and no share before its time
    assert begun.description.startswith("the first 8 ms")
    assert begun.description.endswith("rank 3: computes 4 ms from 3 ms: F0 BW0 F1")


def test_each_wait_says_how_long_it_is_where_there_is_room():
    """Those of 1 and 2 are too narrow here, and a bare number would be taken for a micro-batch."""
    ones = Durations(forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3)
    words, _ = words_on_and_below(viz.plot_schedule(ALL["GPipe"], ones).svg)
    assert sorted(text for text in words if text.endswith(" ms")) == [
        "3 ms",
        "3 ms",
        "4 ms",
        "6 ms",
        "6 ms",
        "9 ms",
    ]


def test_the_key_has_the_letters_of_the_formulas():
    assert {"backward input B", "backward weight W"} <= set(words_in(viz.plot_schedule(schedule("zb-h1", 2, 2)).svg))


def test_numbers_stand_out_from_their_boxes():
    texts = [part.element for part in Film(viz.plot_schedule(schedule("1f1b", 2, 2)).svg).parts("text")]
    hues = [text.get("fill") for text in texts if text.text == "1"]
    assert hues == [style.BLACK_LETTERS] * 4 + [style.SOFT]  # the last is the axis'


def test_a_rank_s_stages_share_its_durations_so_that_schedules_are_comparable():
    picture = viz.plot_schedules(ALL)
    assert "  1F1B: step 33 F, bubble 9 F: 27.3% of the step, 37.5% of the ideal time\n" in picture.text
    assert "  interleaved, 2 stages per rank: step 28.5 F, bubble 4.5 F: 15.8% of the step" in picture.text
    (gpipe, _), (one, _), (interleaved, boxes), (zero, _) = runs_in(picture.svg)
    assert len({lanes[0][0] for lanes in (gpipe, one, interleaved, zero)}) == 1
    wide = [lanes[0][2] for lanes in (gpipe, one, interleaved, zero)]
    assert wide == pytest.approx([wide[0] * end / 33 for end in (33, 33, 28.5, 27)], abs=0.02)
    assert len(boxes) == 4 and {style.tint(style.COMPUTE["forward"], share) for share in (1, 0.5)} < boxes.keys()
    assert "paler: a rank's later stage" in words_in(picture.svg)


def test_messages_that_take_time_are_strips_below_their_senders():
    one = schedule("gpipe", 2, 2)
    sends = [(1, 1.5, 0), (2, 2.5, 0), (5.5, 6, 1), (7.5, 8, 1)]
    ((ground, boxes),) = runs_in(viz.plot_schedule(one, message_s=0.5).svg)
    drawn_there = [
        (10 * start, 10 * end, rank) for start, end, rank in shares(ground, boxes[style.COMMUNICATION.lower()])
    ]
    assert drawn_there == [pytest.approx(send, abs=1e-3) for send in sends]
    ((_, boxes),) = runs_in(viz.plot_schedule(one).svg)
    assert style.COMMUNICATION.lower() not in boxes


def test_a_run_is_drawn_below_its_simulation_with_the_micro_batches_of_its_list():
    picture = run_picture("zb-h1", 3, 4, factor=1.25)
    (ground, simulated), (below, run) = runs_in(picture.svg)
    assert below[0][:1] == ground[0][:1] and below[0][2] == pytest.approx(1.25 * ground[0][2], abs=0.02)
    assert simulated.keys() == run.keys() and style.COMMUNICATION.lower() in run
    for hue in simulated:
        assert shares(below, run[hue]) == [pytest.approx(box, abs=1e-4) for box in shares(ground, simulated[hue])]
    assert len(run[style.COMMUNICATION.lower()]) == 4 * 4
    assert words_in(picture.svg).count("3") == 2 * 3 * 3
