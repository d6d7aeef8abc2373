"""Figures as SVG: small, complete in themselves, and not moved by what makes them small."""

from __future__ import annotations

import math
import re
from functools import cache
from io import StringIO
from xml.etree import ElementTree

import pytest

from course_lib import viz
from course_lib.schedules import make_schedule
from course_lib.viz.ink import sheet, svg

FIGURES = {
    "ranks": lambda: viz.plot_ranks(4),
    "primitives": viz.primitives_overview,
    "ring": lambda: viz.ring_all_reduce_step(4, 2),
    "held": lambda: viz.plot_held({"1F1B": make_schedule("1f1b", 4, 8)}),
}
NUMBER = r"-?(?:\d+\.?\d*|\.\d+)"


@cache
def both(name):
    """What matplotlib writes, and what the picture does."""
    picture, buffer = FIGURES[name](), StringIO()
    with sheet.course_style():
        picture.figure.savefig(buffer, format="svg")
    return buffer.getvalue(), picture.svg


def places(path):
    """The points of a path, absolute, without those at which it closes."""
    found, now, start = [], (0.0, 0.0), (0.0, 0.0)
    for command, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        numbers = [float(number) for number in re.findall(NUMBER, text)]
        if command in "hv":
            numbers = [numbers[0], 0.0] if command == "h" else [0.0, numbers[0]]
        by = now if command.islower() else (0.0, 0.0)
        points = [(x + by[0], y + by[1]) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
        found += points
        now = start if command in "zZ" else points[-1]
        if command == "M":
            start = now
        while command in "zZ" and math.dist(found[-1], start) < 1e-9:
            found.pop()
    return found


def glyphs(text):
    """By name, the outline of each glyph."""
    defs = next(iter(ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}defs")))
    return {path.get("id"): path.get("d") for path in defs}


@pytest.mark.parametrize("name", FIGURES)
def test_it_takes_less_than_two_thirds_of_matplotlib_s_bytes(name):
    large, small = both(name)
    assert len(small) < len(large) * 2 / 3


@pytest.mark.parametrize("name", FIGURES)
def test_every_reference_finds_its_one_target_and_nothing_else_has_a_name(name):
    small = both(name)[1]
    names = re.findall(r' id="([^"]+)"', small)
    assert len(names) == len(set(names))
    assert set(names) == set(re.findall(r'"(?:url\()?#([\w-]+)\)?"', small))


@pytest.mark.parametrize("name", FIGURES)
def test_no_path_moves_by_more_than_can_be_seen(name):
    large, small = both(name)
    drawn = [re.findall(r' d="([^"]+)"', re.sub(r"<defs>.*?</defs>", "", text, flags=re.DOTALL)) for text in both(name)]
    assert len(drawn[0]) == len(drawn[1]) > 0
    for before, after in zip(*drawn, strict=True):
        assert places(after) == [pytest.approx(point, abs=0.0051) for point in places(before)]


def test_outlines_are_those_of_the_font_to_a_thousandth_of_an_em():
    large, small = both("ranks")
    outlines = glyphs(small)
    found = re.findall(r'<path id="([A-Z])[a-z]+([A-Z])[a-z]+-([A-Z])[a-zA-Z]+-(\w+)" d="([^"]+)"', large)
    assert len(found) > 10
    for *capitals, number, before in found:
        after = next(d for name, d in outlines.items() if re.fullmatch("".join(capitals) + "B?" + number, name))
        assert places(after) == [pytest.approx((x / 64, y / 64), abs=0.051) for x, y in places(before)]


def test_figures_in_one_page_mean_the_same_glyph_by_the_same_name():
    one, other = (glyphs(both(name)[1]) for name in ("ranks", "held"))
    shared = set(one) & set(other)
    assert len(shared) > 10
    assert all(one[name] == other[name] for name in shared)


def names_of_its_own(text):
    """By name, what a figure defines for itself: clip paths, markers, hatches."""
    root = ElementTree.fromstring(text)
    return {one.get("id"): one for one in root.iter() if one.get("id") and one.get("id") not in glyphs(text)}


def test_figures_in_one_page_share_no_other_name_and_one_figure_always_has_the_same():
    """Chunks on their way are hatched, each hatching clipped by its own chunk."""
    steps = [viz.ring_all_reduce_step(4, step) for step in (1, 2)]
    one, other = (names_of_its_own(picture.svg) for picture in steps)
    assert len(one) > 10 and len(other) > 10
    assert not one.keys() & other.keys()
    assert viz.ring_all_reduce_step(4, 1).svg == steps[0].svg


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("M 10 10 L 30 10 L 30 20 L 10 20 L 10 10 z", "M10 10h20v10h-20z"),
        ("M 0.5 -0.5 L 1.004 1.996", "M.5-.5l.5 2.5"),
        ("M 1 1 Q 2 1 2 2 C 2 3 1 3 1 2", "M1 1q1 0 1 1c0 1-1 1-1 0"),
        ("M 1 1 L 2 2 z M 5 5 L 6 6", "M1 1l1 1zM5 5l1 1"),
        ("M 0.004 0 L 0.008 0 L 0.012 0", "M0 0h.01h0"),
    ],
)
def test_a_path_is_written_in_short_steps_on_a_grid(path, short):
    text = f'<svg xmlns="http://www.w3.org/2000/svg"><path d="{path}"/></svg>'
    assert f'<path d="{short}"/>' in svg.written(svg.parsed(text))
