"""A figure on a dark page: each of its colours has a partner there that keeps its meaning and can be read."""

from __future__ import annotations

import re
from base64 import b64decode

import pytest

from course_lib import viz
from course_lib.viz.ink import dark, style
from course_lib.viz.ink.cause_hues import CAUSE_HUES
from course_lib.viz.ink.cells import NEGATIVE, POSITIVE
from course_lib.viz.ink.colours import contrast
from course_lib.viz.memory.parts import HEAD, WEIGHTS
from tests.unit import test_viz_moving, test_viz_pictures
from tools.paths import ROOT

EXPLORERS = (viz.float_bits_explorer, viz.memory_explorer, viz.schedule_explorer, viz.causal_explorer)
SHOWN = {
    **{name: test_viz_pictures.FIGURES[name] for name in test_viz_pictures.ONE_OF_EACH},
    **{name: test_viz_moving.FIGURES[name] for name in test_viz_moving.ONE_OF_EACH},
    **{make.__name__: make for make in EXPLORERS},
    "ring_stepper": lambda: viz.ring_stepper(4),
}
HUES = (
    *style.RANK_HUES,
    *style.COMPUTE.values(),
    *style.ALGORITHM_HUES.values(),
    *style.RUN_HUES,
    *(hue for hue in CAUSE_HUES.values() if len(hue) == 7),  # waiting is a shadow
    *(style.COMMUNICATION, style.OTHER_COMPUTE, style.WRONG, POSITIVE, NEGATIVE, WEIGHTS, HEAD),
)
USED = re.compile(r"(?:fill|stroke)(?::|=\")(#[0-9a-fA-F]{6,8})\b")
DARK = re.compile(r"<style>@media screen and \(prefers-color-scheme:dark\)\{(.*)\}</style></svg>$", re.DOTALL)


@pytest.mark.parametrize("name", SHOWN)
def test_every_image_carries_a_dark_partner_of_each_of_its_colours(name):
    images = re.findall(r'base64,([^"]*)"', SHOWN[name]()._repr_mimebundle_()["text/html"])
    assert images
    for svg in (b64decode(data).decode() for data in images):
        (rules,) = DARK.findall(svg)
        colours = set(USED.findall(DARK.sub("", svg)))
        assert colours and all(f'="{colour}"]' in rules and f':{colour}"]' in rules for colour in colours)


def test_no_other_place_writes_an_image():
    sources = {path.name: path.read_text() for path in (ROOT / "course_lib").rglob("*.py")}
    assert [name for name, text in sources.items() if "data:image/svg" in text] == ["image.py"]


THEME = ':is([data-jp-theme-light="false"],[data-theme="dark"])'


def test_what_stands_in_the_page_follows_the_page_s_theme_and_paper_stays_light():
    live = viz.animate_ring(4).live
    style_element, _, figure = live.partition('<div class="course-figure"')
    rules = style_element.removeprefix("<style>@media screen{").removesuffix("}</style>").split("}")
    assert figure and all(rule.startswith(f"{THEME} .course-figure ") for rule in rules if rule)
    assert "prefers-color-scheme" not in live


def test_a_saved_figure_is_light(tmp_path):
    for picture in (viz.plot_ranks(2), viz.animate_ring(4)):
        assert "prefers-color-scheme" not in picture.save(tmp_path / "it.svg").read_text() + picture.still


@pytest.mark.parametrize("hue", HUES)
def test_a_hue_stands_out_from_the_dark_card_and_letters_from_it(hue):
    partner = style.on_dark(hue)
    assert contrast(partner, style.DARK_PAPER) >= 3.5  # WCAG asks 3 of what is no text
    assert contrast(style.on_dark(style.text_on(hue)), partner) >= 3.9
    assert contrast(dark.for_letters(hue, partner), style.DARK_PAPER) >= 4.5


@pytest.mark.parametrize("strength", [0.06, 0.15, 0.3, 0.5, 0.62, 0.85, 1.0])
def test_letters_on_a_tint_are_read_on_both_pages(strength):
    for hue in HUES:
        pale = style.tint(hue, strength)
        letters = style.text_on(pale)
        assert contrast(letters, pale) >= 3.5 and contrast(style.on_dark(letters), style.on_dark(pale)) >= 3.5


def test_paper_and_ink_change_places_and_bright_hues_stay():
    assert style.on_dark(style.PAPER) == style.DARK_PAPER
    assert min(contrast(style.on_dark(one), style.DARK_PAPER) for one in (style.INK, style.SOFT)) >= 7
    assert style.on_dark(style.COMPUTE["forward"]) == style.COMPUTE["forward"].lower()
    assert style.on_dark(style.IDLE)[7:] == style.IDLE[7:]  # as much light as there was shadow
