"""The pictures of module 04: they look like the others, and say what the lists and the formulas say."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from course_lib import viz
from course_lib.comm.ledger import Event, Ledger
from course_lib.schedules import (
    LABELS,
    Compute,
    Durations,
    SendActivation,
    SendGradient,
    bubble_s,
    held,
    idle_s,
    make_schedule,
    time_schedule,
)
from course_lib.viz import style
from tests.unit import moving_svg
from tests.unit.moving_svg import Film
from tests.unit.test_viz_module_03 import drawn
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


def ran(one, durations, message_s=0.0, factor=1.0):
    """What a run would leave in its ledger, were it `factor` times as long as the simulation; it begins at 50 s."""
    events = []
    for slot in time_schedule(one, durations, message_s=message_s):
        times = {"start_s": 50 + factor * slot.start_s, "end_s": 50 + factor * slot.end_s}
        if isinstance(slot.instruction, Compute):
            events.append(Event(rank=slot.rank, kind="compute", operation=LABELS[type(slot.instruction)], **times))
        elif isinstance(slot.instruction, SendActivation | SendGradient):
            events.append(Event(rank=slot.rank, kind="send", operation="isend", peer=0, **times))
    events.append(Event(rank=0, kind="compute", operation="optimizer", start_s=60, end_s=61))
    return Ledger(events, one.n_ranks)


def run_picture(name, p, m, factor=1.0, message_s=1e-4):
    one = schedule(name, p, m)
    return viz.plot_schedule_run(one, ran(one, IN_MS, message_s, factor), IN_MS, message_s=message_s)


COUNTS = (1, 2, 4, 8, 16)
PREDICTED = {f"p = {p}": {m: (p - 1) / (m + p - 1) for m in COUNTS} for p in (2, 4, 8)}
MEASURED = {"p = 2": {1: 0.51, 4: 0.2}, "this machine": {2: 0.7, 8: 0.6}}


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
    **{
        f"run-{name}": lambda name=name: run_picture(name, 4, 8, factor=1.1)
        for name in ("gpipe", "1f1b", "zb-h1", "interleaved")
    },
    "held": lambda: viz.plot_held(ALL),
    "held-one": lambda: viz.plot_held({"ZB-H1": schedule("zb-h1", 8, 16)}),
    "held-five": lambda: viz.plot_held({f"way {k}": schedule("interleaved", 8, 16) for k in range(5)}),
    "idle": lambda: viz.plot_idle(PREDICTED, MEASURED),
    "idle-one": lambda: viz.plot_idle({"1F1B": {4: 0.0}}),
    "idle-measured": lambda: viz.plot_idle({}, MEASURED),
}


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith(("held", "idle"))])
def test_the_text_is_large_within_the_margins_and_does_not_overlap(name):
    figure = FIGURES[name]().figure
    assert len(drawn_texts(figure)) >= 3
    assert list(flaws(figure)) == []


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith(("schedule", "run"))])
def test_the_text_of_lanes_is_large_within_the_margins_and_does_not_overlap(name):
    svg = FIGURES[name]().svg
    assert len(words_in(svg)) >= 3
    assert moving_svg.flaws(svg) == []


@pytest.mark.parametrize("name", ["schedule-1f1b-4-8", "schedules", "run-zb-h1", "held", "idle"])
def test_the_svg_speaks_and_is_the_same_in_every_call(name):
    picture = FIGURES[name]()
    assert picture.svg == FIGURES[name]().svg
    root = ElementTree.fromstring(picture.svg)
    assert (root[0].text, root[1].text) == (picture.title, picture.description)


def test_a_ledger_and_a_schedule_have_the_same_colours():
    assert set(LABELS.values()) < set(style.COMPUTE)


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
    axes, later = begun.figure.axes[1], whole.figure.axes[1]
    assert axes.get_xlim() == later.get_xlim() and axes.get_position().bounds == later.get_position().bounds
    for hue in (style.COMPUTE["forward"], style.COMPUTE["backward"]):
        drawn_so_far = [box for box in boxes(later, hue) if box[1] <= 8.4 + 1e-9]
        assert sorted(boxes(axes, hue)) == [pytest.approx(box) for box in sorted(drawn_so_far)]
    words = [text for text, *_ in drawn_texts(begun.figure)]
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
        "bubble 6 ms",
        "bubble 6 ms",
        "bubble 9 ms",
    ]


def test_the_key_has_the_letters_of_the_formulas():
    assert {"backward input B", "backward weight W"} <= set(words_in(viz.plot_schedule(schedule("zb-h1", 2, 2)).svg))


def test_numbers_stand_out_from_their_boxes():
    texts = [part.element for part in Film(viz.plot_schedule(schedule("1f1b", 2, 2)).svg).parts("text")]
    assert [text.get("fill") for text in texts if text.text == "1"] == ["#000000"] * 4 + [style.SOFT]  # the axis'


def test_a_schedule_says_its_step_its_bubble_and_who_does_what_when():
    lines = viz.plot_schedule(schedule("1f1b", 2, 2)).text.splitlines()
    assert lines == [
        "1F1B: 2 ranks, 2 micro-batches (formula)",
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
    assert f"step {1e3 * step:.3g} ms, bubble {1e3 * bubble:.3g} ms: {100 * bubble / step:.3g}% of the step, " in text
    shares = [f"rank {rank}: idle {idle / step:.0%};" for rank, idle in enumerate(idle_s(slots, 3))]
    assert len(set(shares)) == 3 and all(share in text for share in shares)


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


def test_a_long_list_is_counted():
    assert (
        "computes 48 F from 1.75 F: 128 computations"
        in viz.plot_schedule(make_schedule("interleaved", 8, 16, stages_per_rank=4)).text
    )


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


def test_a_run_says_both_ends_and_each_rank_s_idle_share():
    one, times = (
        schedule("gpipe", 3, 4),
        [IN_MS, IN_MS, Durations(forward_s=2e-3, backward_input_s=1e-3, backward_weight_s=1e-3)],
    )
    picture = viz.plot_schedule_run(one, ran(one, times, factor=1.1), times)
    slots = time_schedule(one, times)
    end = max(slot.end_s for slot in slots)
    ends = f"the simulation ends after {1e3 * end:.3g} ms, the run after {1.1e3 * end:.3g} ms (+10.0%)"
    assert picture.text.splitlines()[1] == ends
    for rank, idle in enumerate(idle_s(slots, 3)):
        assert f"  rank {rank}: idle {idle / end:.1%} simulated, {idle / end:.1%} run" in picture.text


def test_held_is_what_the_list_says_in_micro_batches_of_a_rank():
    lines = viz.plot_held(ALL).text.splitlines()[2:]
    for (name, one), line in zip(ALL.items(), lines, strict=True):
        peaks = [held(one, rank) for rank in range(4)]
        numbers = ", ".join(f"{peak.in_flight / one.stages_per_rank:.3g}" for peak in peaks)
        assert line.startswith(f"  {name}, from rank 0 on: in flight {numbers}")
    assert lines[3].endswith("; stashed 1, 2, 3, 4") and "stashed" not in "".join(lines[:3])


def test_held_bars_are_to_scale_in_one_colour_for_each_kind():
    page = viz.plot_held(ALL).figure.axes[0]
    width = {}
    for kind, hue in (("in flight", style.COMPUTE["forward"]), ("stashed", style.COMPUTE["backward weight"])):
        bars = [bar for bar in page.findobj(FancyBboxPatch) if to_hex(bar.get_facecolor()) == hue.lower()]
        width[kind] = [bar.get_width() for bar in bars[1:]]  # the first is the key's
    unit = width["in flight"][0] / 8
    numbers = [8, 8, 8, 8, 4, 3, 2, 1, 5.5, 4.5, 3.5, 2.5, 4, 3, 2, 1]
    assert width["in flight"] == pytest.approx([unit * number for number in numbers])
    assert width["stashed"] == pytest.approx([unit * number for number in (1, 2, 3, 4)])


def test_idle_draws_lines_and_marks_of_one_hue_where_the_numbers_are():
    picture = viz.plot_idle(PREDICTED, MEASURED)
    line, marks = drawn(picture.figure.axes[1], style.RUN_HUES[1])
    assert line == (list(COUNTS), [1 / (m + 1) for m in COUNTS])
    assert marks == ([1, 4], [0.51, 0.2])
    assert drawn(picture.figure.axes[1], style.RUN_HUES[4]) == [([2, 8], [0.7, 0.6])]
    assert "  p = 4, predicted: 75.0% with m = 1, 60.0% with m = 2, " in picture.text
    assert "  this machine, measured: 70.0% with m = 2, 60.0% with m = 8" in picture.text


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
        (
            lambda: viz.plot_schedule(schedule("gpipe", 4, 8), IN_MS, upto_s=3.5e-3),
            r"^plot_schedule: upto_s=0.0035; each rank has done something by then; choose a later time",
        ),
        (
            lambda: viz.plot_schedule(replace(schedule("gpipe", 2, 2), lists=(schedule("gpipe", 2, 2).lists[0], ()))),
            r"^plot_schedule: .*; a schedule is drawn as it runs; mend its lists first",
        ),
        (lambda: viz.plot_schedules({}), r"^plot_schedules: 0 schedules; this picture holds 1 to 6; draw two pictures"),
        (
            lambda: viz.plot_schedules({"a long name " * 8: schedule("gpipe", 2, 2)}),
            r"^plot_schedules: schedule 'a long.*'; a schedule's name, its step and its bubble fit on one line; sh",
        ),
        (
            lambda: viz.plot_schedule_run(schedule("zb-h1", 2, 2), ran(schedule("1f1b", 2, 2), IN_MS), IN_MS),
            r"^plot_schedule_run: rank 0 computed 4 times in the ledger, its list has 6; the ledger is of .*; cl",
        ),
        (lambda: viz.plot_held({}), r"^plot_held: 0 schedules; this picture holds 1 to 5; draw two pictures"),
        (
            lambda: viz.plot_held({"a very long name of a schedule " * 10: schedule("gpipe", 2, 2)}),
            r"^plot_held: schedule 'a very .*'; a name fits above its bars in two lines; shorten it",
        ),
        (
            lambda: viz.plot_held({"a": schedule("gpipe", 9, 1)}),
            r"^plot_held: 9 ranks; this picture holds 1 to 8 ranks",
        ),
        (lambda: viz.plot_idle({}), r"^plot_idle: 0 lines of no points; this picture holds 1 to 5 lines.*; leave some"),
        (lambda: viz.plot_idle({"a": {2: 1.5}}), r"^plot_idle: share 1.5 with 2 micro-batches; it is a part .*; give"),
    ],
)
def test_bad_input_is_refused_in_four_parts(call, message):
    with pytest.raises(ValueError, match=message):
        call()
