"""The ladder's own figures: each bug on its first rung, with what the ladder and the loss curve said."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import pytest

from course_lib import viz
from course_lib.viz.ink import style
from tests.unit.moving_svg import Film

RUNGS = ("output", "gradients", "gradient norm", "parameters", "loss curve", "AdamW", "save and load")


class Fall(NamedTuple):
    """Facts as `verify.museum.fall` brings them."""

    rung: str | None
    deviation: float | None
    losses: tuple[float, ...]
    reference: tuple[float, ...]
    off: float
    rungs: tuple[str, ...] = RUNGS


FALLS = {
    "summed": Fall("gradients", 3.0, (4.0, 3.0, 2.0), (4.0, 2.9, 2.1), 0.0123),
    "weights start different": Fall("output", 0.7, (4.1, 3.0, 2.0), (4.0, 3.0, 2.0), 0.001),
    "a rank has no such state": Fall("save and load", float("inf"), (4.0, 3.0), (4.0, 3.0), 0.0),
    "sound": Fall(None, None, (4.0, 3.0), (4.0, 3.0), 0.0),
}


def rows(film):
    """Between each two lines of the table, what is written, from left to right."""
    paths = [part.element.get("d") for part in film.parts("path")]
    lines = sorted(float(y[1]) for y in (re.fullmatch(r"M35 ([\d.]+)H805", d) for d in paths) if y)
    texts = [(float(one.element.get("x")), float(one.element.get("y")), one.element.text) for one in film.parts("text")]
    return [[words for _, y, words in sorted(texts) if top < y < foot] for top, foot in pairwise(lines)]


def test_each_run_is_equal_up_to_the_rung_that_breaks_and_bears_its_deviation():
    found = rows(Film(viz.plot_museum(FALLS).svg))
    assert [row[-8:] for row in found] == [
        ["=", "300%", *"·····", "1.2%"],
        ["70%", *"······", "0.1%"],
        [*"======", "≠", "0%"],
        [*"=======", "0%"],
    ]
    assert [" ".join(row[:-8]) for row in found] == [*FALLS]


def test_a_run_climbs_to_the_rung_that_breaks_and_no_further():
    film = Film(viz.animate_ladder("summed", FALLS["summed"]).svg)
    outcomes = [words for words in film.words() if words in ("equal", "not tried") or words.startswith("apart")]
    assert outcomes == ["equal", "apart by 300%", *["not tried"] * 5]
    assert not {"equal", "not tried"} & set(film.words(0.5))
    frame = next(part for part in film.parts("rect") if part.element.get("stroke") == style.INK)
    name = next(part for part in film.parts("text") if part.element.text == "gradients")
    top, tall = (float(frame.element.get(side)) for side in ("y", "height"))
    assert top < float(name.element.get("y")) < top + tall
    first = next(part for part in film.parts("text") if part.element.text == "output")
    assert top < float(first.element.get("y")) - film.lift(frame, 0.0) < top + tall


def test_both_curves_are_drawn_on_one_scale():
    fall = FALLS["summed"]
    film = Film(viz.animate_ladder("summed", fall).svg)
    drawn = [part.element.get("d") for part in film.parts("path") if part.element.get("stroke-linejoin") == "round"]
    heights = [[float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", d)] for d in drawn]
    low, high = max(map(max, heights)), min(map(min, heights))
    for losses, ys in zip((fall.reference, fall.losses), heights, strict=True):
        assert [2.0 + 2.0 * (low - y) / (low - high) for y in ys] == pytest.approx(losses, abs=0.01)
    said = "last quarter off by 1.2%"
    assert said in film.words() and said not in film.words(1.0)


def test_the_words_say_rung_deviation_and_loss():
    lines = viz.plot_museum(FALLS).description.splitlines()[1:]
    assert lines[0] == "  summed: breaks rung 2, gradients, by 300%; its loss is off by 1.2%"
    assert lines[2].endswith("breaks rung 7, save and load; its loss is off by 0%")
    assert lines[3] == "  sound: every rung is passed; its loss is off by 0%"


@pytest.mark.parametrize(
    ("falls", "message"),
    [
        ({}, r"plot_museum: 0 runs; this picture holds 1 to 16; draw two pictures"),
        (
            {"a": FALLS["sound"]._replace(rung="bytes")},
            r"rung='bytes'; a fall is from one of the ladder's rungs; choose",
        ),
        (
            {"a long name " * 6: FALLS["sound"]},
            r"run 'a long .*'; a run's name fits beside the rungs in two",
        ),
    ],
)
def test_runs_that_do_not_fit_are_refused(falls, message):
    with pytest.raises(ValueError, match=message):
        viz.plot_museum(falls)
