"""Figures that move: complete in one file, readable without moving, and never at odds with what they end in."""

from __future__ import annotations

import re
from base64 import b64decode

import pytest

from course_lib import viz
from course_lib.less.error_memory import Followed
from course_lib.sequence_cut import SequenceCut
from course_lib.viz.ink import sheet
from course_lib.viz.ink.canvas import WIDE, WIDTH, Canvas, text_width
from course_lib.viz.ink.dark import with_dark_variant
from tests.unit.module_03.test_viz_moving_ladder import FALLS
from tests.unit.module_03.test_viz_moving_overlap import LAYERS, STEP
from tests.unit.module_04.test_viz_moving_schedules import four_schedules
from tests.unit.moving_svg import Film

SIZES = range(2, 9)
LARGEST = 60 * 1024


FIGURES = {
    "ladder": lambda: viz.animate_ladder("summed", FALLS["summed"]),
    "ladder-passed": lambda: viz.animate_ladder("sound", FALLS["sound"]),
    "museum": lambda: viz.plot_museum(FALLS),
    **{f"overlap-{p}": lambda p=p: viz.animate_overlap(LAYERS, world_size=p, **STEP) for p in SIZES},
    **{f"zero-{p}": lambda p=p: viz.animate_zero_stages(7.5, p) for p in SIZES},
    **{f"schedules-{p}": lambda p=p: viz.animate_schedules(four_schedules(p)) for p in SIZES},
    **{f"ring-{p}": lambda p=p: viz.animate_ring(p) for p in (1, *SIZES)},
    **{f"attention-{p}": lambda p=p: viz.animate_ring_attention(SequenceCut(6 * p, p)) for p in (1, *SIZES)},
    "attention-zigzag": lambda: viz.animate_ring_attention(SequenceCut(64, 8, "zigzag")),
    "causal": lambda: viz.plot_causal(SequenceCut(16, 4), SequenceCut(16, 4, "zigzag")),
    "softmaxes": lambda: viz.plot_two_softmaxes([1.0, 2.0, 3.0], [1.0, 1.0, 2.0]),
    "experts": lambda: viz.plot_experts([[[0, 1], [0, 2]], [[0, 1], [1, 3]]], 4, ranks=2, capacity=1.0),
    "tiles": viz.plot_tiles,
    "frozen": viz.plot_frozen,
    "levels": lambda: viz.plot_levels({"even steps": [-1.0, -0.5, 0.0, 0.5, 1.0]}),
    **{f"consensus-{n}": lambda n=n: viz.animate_consensus(["ring", "complete"] * 2, range(n)) for n in (2, 8, 16)},
    "residual": lambda: viz.plot_residual(Followed([1.0, 1.0, -1.0], [0.0, 2.0, 0.0], [1.0, 0.0, -1.0])),
    "dice": lambda: viz.plot_dice(4, [0.31, 0.6]),
}
WIDE_ONES = re.compile("museum|attention|causal|softmaxes|experts|tiles|frozen|levels|consensus|residual|dice")
WIDTHS = dict.fromkeys(filter(WIDE_ONES.match, FIGURES), WIDE)
ONE_OF_EACH = ["ladder", "museum", "ring-4", "overlap-4", "zero-4", "schedules-4"]
ONE_OF_EACH += [
    "attention-4",
    "causal",
    "softmaxes",
    "experts",
    "tiles",
    "frozen",
    "levels",
    "consensus-16",
    "residual",
    "dice",
]


@pytest.fixture(scope="module", params=FIGURES)
def film(request):
    found = Film(FIGURES[request.param]().svg)
    found.width = WIDTHS.get(request.param, WIDTH)
    return found


def test_it_is_one_small_file_that_needs_no_script_and_nothing_from_elsewhere(film):
    assert len(film.svg.encode()) <= LARGEST
    assert "<script" not in film.svg and not re.search(r"""(?:src|href)\W{1,3}https?:|url\((?!data:)""", film.svg)


def test_it_is_as_wide_as_its_place_and_says_itself(film):
    assert "width" not in film.root.attrib and film.root.get("viewBox").startswith(f"0 0 {film.width:g} ")
    assert film.root.get("role") == "img"
    assert [child.tag for child in film.root][:2] == ["title", "desc"]
    assert len(film.root.findtext("desc")) > 30


def test_text_is_text_in_letters_that_the_file_brings_along(film):
    texts = film.parts("text")
    assert len(texts) > 3 and all(part.element.text.strip() for part in texts)
    assert all(float(part.element.get("font-size", 16)) >= 12 for part in texts)
    family = re.search(r"@font-face\{font-family:(\w+);", film.css)[1]
    assert film.root.get("font-family").startswith(f"{family}, Inter, ")


def test_every_movement_ends_in_what_is_drawn(film):
    """So the still, which print and people who ask for less motion get, is the end."""
    for part in film.parts():
        motion = film.motions.get(part.element.get("class", ""))
        if motion:
            end, drawn = motion[-1][1], float(part.element.get("opacity", 1))
            assert float(end.get("opacity", 1)) == drawn
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", end.get("transform", "").partition(":")[2])]
            assert drawn == 0 or not any(numbers)


def test_nothing_moves_for_who_asks_for_less_motion_or_prints(film):
    inside = re.search(r"@media screen and \(prefers-reduced-motion:no-preference\)\{(.*)\}", film.css)
    outside = re.sub(r"@keyframes.*", "", film.css.replace(inside[0] if inside else "", ""))
    assert "animation" not in outside
    assert set(re.findall(r"animation-name:(\w+)", inside[1] if inside else "")) == film.motions.keys()


def test_it_says_something_from_its_first_frame_on(film):
    assert len(film.words(film.begins_s)) > 3


@pytest.mark.parametrize("name", ["ladder", "overlap-4", "schedules-4"])
def test_a_sweep_s_first_second_shows_all_of_the_still_and_no_veil(name):
    film = Film(FIGURES[name]().svg)
    for at_s in (film.begins_s, film.begins_s + 1):
        seen = [film.opacity(part, at_s) for part in film.parts()]
        assert at_s < film.lasts_s and seen == [film.opacity(part) for part in film.parts()]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_same_facts_give_the_same_bytes_and_an_image_with_an_alternative(name, tmp_path):
    picture = FIGURES[name]()
    assert picture.svg == FIGURES[name]().svg == picture.save(tmp_path / "it.svg").read_text()
    bundle = picture._repr_mimebundle_()
    assert bundle["text/plain"] == picture.text == repr(picture)
    alternative, data = re.search(r'alt="(.*?)" src="data:image/svg\+xml;base64,(.*?)"', bundle["text/html"]).groups()
    assert b64decode(data).decode() == with_dark_variant(picture.svg)
    assert alternative.startswith(picture.title) and picture.title in picture.svg


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_still_is_the_last_frame_and_nothing_in_it_moves(name):
    picture = FIGURES[name]()
    film, still = Film(picture.svg), Film(picture.still)
    assert still.words() == film.words() == still.words(0.0)
    assert not still.motions and "animation" not in still.css
    assert len(picture.still) <= len(picture.svg)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_it_moves_in_a_fold_that_is_closed_and_stands_still_below_it(name):
    picture = FIGURES[name]()
    drawn = [b64decode(data).decode() for data in re.findall(r"base64,(.*?)\"", picture.html)]
    fold = re.match(
        r"<details><summary><small>Let it move; .*?</small></summary><img [^>]*></details><img", picture.html
    )
    if Film(picture.svg).motions:
        assert fold and drawn == [with_dark_variant(picture.svg), with_dark_variant(picture.still)]
    else:
        assert not fold and drawn == [with_dark_variant(picture.svg)]


def test_every_movement_ends_by_itself(film):
    assert "infinite" not in film.css
    assert (film.rounds == 3) == bool(film.motions)


def test_two_figures_on_one_page_share_no_name():
    svgs = {FIGURES[name]().svg for name in FIGURES}
    names = [set(re.findall(r'id="(\w+)"|@keyframes (\w+)|font-family:(\w+)', svg)) for svg in svgs]
    assert all(names) and sum(map(len, names)) == len(set.union(*names))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_it_rests_at_its_end_for_two_seconds(name):
    film = Film(FIGURES[name]().svg)
    for at_s in (film.lasts_s - 2, film.lasts_s - 0.01) if film.motions else ():
        seen = [film.opacity(part, at_s) for part in film.parts()]
        assert seen == pytest.approx([film.opacity(part) for part in film.parts()], abs=0.01)


@pytest.mark.parametrize("what", ["title", "subtitle"])
def test_words_that_do_not_fit_on_their_line_are_refused(what):
    with pytest.raises(
        ValueError, match=rf"Canvas: {what}='long.*'; a {what} fits on its line of the card; shorten it"
    ):
        Canvas(100, **{"title": "a", what: "long " * 20}, kinds=["measured"])


@pytest.mark.parametrize("bold", [False, True])
@pytest.mark.parametrize("words", ["each rank keeps 1/4 of it", "Σ0", "step 28.5 F, idle 15.8%, at most 5.5 in flight"])
def test_a_line_is_as_long_as_its_outlines(words, bold):
    drawn = 72 * sheet.text_width(words, 16, 600 if bold else 400)
    assert drawn < text_width(words, 16, bold=bold) < drawn + 5  # the room beside the first and the last letter


def test_save_refuses_what_is_no_svg(tmp_path):
    with pytest.raises(ValueError, match=r"Drawing.save: path='x.png'; a drawing is an .svg; choose that"):
        viz.animate_ring(2).save(tmp_path / "x.png")
