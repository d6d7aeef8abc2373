"""The slide check: each fault it promises to find is found in a deck that has it, and only there."""

from __future__ import annotations

import pytest

from slides import deck_check, marp
from tools.paths import ROOT

NOTES = "<!--\nMinutes: 3\n\nSay: something.\n-->"
PAGE = "![words](https://example.invalid/a.png)"
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
SLIDES = {
    "fine": f'## Fine\n\nText, $x^2$, and a picture.\n\n<img class="small" src="{PIXEL}" alt="a dot">',
    "long": "## Long\n\n" + "\n\n".join(["One line after the other."] * 20),
    "wide": '## Wide\n\n<div style="width: 1300px">wider than the slide</div>',
    "moved": '## Moved\n\n<div style="position: absolute; left: 1200px; width: 200px; top: 300px">over the edge</div>',
    "foot": '## Foot\n\n<div style="position: absolute; top: 640px">on the page number</div>',
    "headline": '## Headline\n\n<div style="position: absolute; top: 60px; left: 64px">on the headline</div>',
    "picture": '## Picture\n\n<img src="gone.svg" alt="gone">',
    "silent": f'## Silent\n\n<img class="small" src="{PIXEL}" alt="">',
    "template": "## Template\n\n{{ forgotten }}",
    "formula": "## Formula\n\n$$\\frac{1}{$$",
    "caption": f'## Caption\n\n<p class="caption">{"a long caption " * 9}</p>',
    "small": '## Small\n\n<p style="font-size: 12px">unreadable from the last row</p>',
}
EXPECTED = {
    "long": "overflows",
    "wide": "outside the slide",
    "moved": "outside the slide",
    "foot": "reaches into the foot",
    "headline": "runs into the headline",
    "picture": "missing picture",
    "silent": "a picture without words",
    "template": "unrendered '{{'",
    "formula": "formula that MathJax cannot read",
    "caption": "the caption takes more than a line",
    "small": "text of 12 px",
}


@pytest.fixture(scope="module")
def browser():
    with deck_check.opened() as browser:
        yield browser


@pytest.fixture(scope="module")
def found(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deck")
    return deck_check.slide_problems(browser, built(folder, [f"{body}\n\n{NOTES}" for body in SLIDES.values()]))


def built(folder, slides):
    deck = folder / "deck.md"
    deck.write_text("---\nmarp: true\ntheme: course\nmath: mathjax\n---\n\n" + "\n\n---\n\n".join(slides) + "\n")
    marp.convert(deck, marp.theme(ROOT / "slides" / "theme.css", folder), folder / "deck.html")
    return folder / "deck.html"


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_fault_is_found(found, fault):
    number = list(SLIDES).index(fault) + 1
    lines = [line for line in found if line.startswith(f"slide {number}: ")]
    assert any(EXPECTED[fault] in line for line in lines), lines


def test_a_good_slide_passes(found):
    assert [line for line in found if line.startswith("slide 1: ")] == []


def test_a_deck_that_asks_the_network_is_found(browser, tmp_path):
    page = built(tmp_path, [f"## Far\n\n{PAGE}\n\n{NOTES}"])
    assert any("asks for https://example.invalid" in line for line in deck_check.slide_problems(browser, page))


def test_slides_without_minutes_or_words_to_say_are_found(tmp_path):
    deck = tmp_path / "deck.md"
    deck.write_text(f"---\nmarp: true\n---\n\n# One\n\n{NOTES}\n\n---\n\n# Two\n\n<!-- _class: title -->\n")
    assert deck_check.note_problems(deck) == [
        "slide 2: its notes have no line 'Minutes: N'",
        "slide 2: its notes do not tell what to say ('Say:')",
        "the slides add up to 3 minutes; a lecture has 45 to 60",
    ]
