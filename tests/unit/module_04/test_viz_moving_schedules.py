"""The moving schedules: boxes, curves and results are those of the lists that they are drawn from."""

from __future__ import annotations

import re

import pytest

from course_lib import viz
from course_lib.schedules import (
    LABELS,
    Backward,
    BackwardInput,
    Compute,
    Durations,
    Forward,
    held,
    make_schedule,
    time_schedule,
)
from course_lib.viz.ink import style
from course_lib.viz.schedules.lanes import shade
from tests.unit.moving_svg import Film, boxes, steps_of

SIZES = range(2, 9)


def four_schedules(p):
    two = make_schedule("interleaved", p, 2 * p, stages_per_rank=2)
    names = {"GPipe": "gpipe", "1F1B": "1f1b", "ZB-H1": "zb-h1"}
    return {**{name: make_schedule(kind, p, 2 * p) for name, kind in names.items()}, "Interleaved": two}


@pytest.mark.parametrize("p", SIZES)
def test_the_schedules_boxes_are_the_slots_of_their_lists_on_one_axis(p):
    schedules, durations = four_schedules(p), Durations()
    film = Film(viz.animate_schedules(schedules).svg)
    lanes, drawn = lanes_and_boxes(film)
    reach = max(slot.end_s for one in schedules.values() for slot in time_schedule(one, durations))
    left, wide = lanes[0][0], max(lane[2] for lane in lanes)
    wanted = []
    for number, schedule in enumerate(schedules.values()):
        for slot in time_schedule(schedule, durations):
            if isinstance(slot.instruction, Compute):
                chunk, v = slot.instruction.stage // p, schedule.stages_per_rank
                hue = shade(style.COMPUTE[LABELS[type(slot.instruction)]], chunk, v)
                top = lanes[number * p + slot.rank][1]
                x, w = (wide * time / reach for time in (slot.start_s, slot.end_s - slot.start_s))
                wanted.append((hue, pytest.approx((left + x, top, w), abs=0.02)))
    assert sorted(drawn, key=lambda one: (one[1][1], one[1][0])) == sorted(
        wanted, key=lambda one: (one[1].expected[1], one[1].expected[0])
    )


def lanes_and_boxes(film):
    """Every rank's idle ground, from the top on; and (hue, (left, top, width)) of all that is computed."""
    lanes, drawn = [], []
    for part in film.parts("path"):
        fill = part.element.get("fill")
        if fill == style.IDLE:
            lanes += boxes(part.element.get("d"))
        elif part.line[-2].get("stroke") == style.PAPER:
            drawn += [(fill, box[:3]) for box in boxes(part.element.get("d"))]
    return lanes, drawn


@pytest.mark.parametrize("p", SIZES)
def test_what_is_in_flight_rises_with_each_forward_and_falls_with_each_backward(p):
    schedules = four_schedules(p)
    film = Film(viz.animate_schedules(schedules).svg)
    curves = [part.element.get("d") for part in film.parts("path") if part.element.get("stroke-width") == "0.8"]
    lanes, _ = lanes_and_boxes(film)
    reach = max(slot.end_s for one in schedules.values() for slot in time_schedule(one, Durations()))
    most = max(held(one, 0).in_flight / one.stages_per_rank for one in schedules.values())
    high = max(height for d in curves for _, height in steps_of(d)[1])
    for d, schedule in zip(curves, schedules.values(), strict=True):
        slots = [slot for slot in time_schedule(schedule, Durations()) if slot.rank == 0]
        for x, height in steps_of(d)[1]:
            time = (x - lanes[0][0]) / max(lane[2] for lane in lanes) * reach + 0.01
            begun = sum(isinstance(slot.instruction, Forward) and slot.start_s < time for slot in slots)
            over = sum(isinstance(slot.instruction, (Backward, BackwardInput)) and slot.end_s < time for slot in slots)
            assert height / high * most * schedule.stages_per_rank == pytest.approx(begun - over, abs=0.02)


def test_the_line_passes_a_schedule_s_end_when_its_result_appears():
    film = Film(viz.animate_schedules(four_schedules(4)).svg)
    results = [words for words in film.words() if words.startswith("step ")]
    assert len(results) == 4 and all(len(re.findall(r"\d", words)) >= 3 for words in results)
    assert not any(words.startswith("step ") for words in film.words(1.0))


def test_the_line_does_not_cross_the_names_of_the_schedules():
    film = Film(viz.animate_schedules(four_schedules(4)).svg)
    names = [float(part.element.get("y")) for part in film.parts("text") if part.element.text in four_schedules(4)]
    lines = []
    for part in film.parts("rect"):
        if part.element.get("width") == "1.5":
            top = float(re.search(r",(.*)\)", part.line[-2].get("transform"))[1])
            lines.append((top, top + float(part.element.get("height"))))
    assert len(names) == len(lines) == 4
    assert not any(top - 2 < name < bottom + 12 for top, bottom in lines for name in names)


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        ({}, r"animate_schedules: 0 schedules; this picture holds 1 to 4; draw two pictures"),
        (
            {"a" * 50: make_schedule("1f1b", 2, 4)},
            r"schedule 'a+'; a schedule's name and its result fit on one",
        ),
        ({"a": make_schedule("1f1b", 9, 9)}, r"animate_schedules: 9 ranks; this picture holds 1 to 8 ranks"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(schedules, message):
    with pytest.raises(ValueError, match=message):
        viz.animate_schedules(schedules)
