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
from course_lib.viz.ink import style
from tests.unit.module_03.test_viz_module_03_curves import drawn
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


@pytest.mark.parametrize("name", ["schedule-1f1b-4-8", "schedules", "run-zb-h1", "held", "idle"])
def test_the_svg_speaks_and_is_the_same_in_every_call(name):
    picture = FIGURES[name]()
    assert picture.svg == FIGURES[name]().svg
    root = ElementTree.fromstring(picture.svg)
    assert (root[0].text, root[1].text) == (picture.title, picture.description)


def test_a_ledger_and_a_schedule_have_the_same_colours():
    assert set(LABELS.values()) < set(style.COMPUTE)


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


def test_a_long_list_is_counted():
    assert (
        "computes 48 F from 1.75 F: 128 computations"
        in viz.plot_schedule(make_schedule("interleaved", 8, 16, stages_per_rank=4)).text
    )


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
