"""What a deck's source can be held against without building it, which takes minutes."""

from __future__ import annotations

import pytest

from slides import build, template


@pytest.fixture(params=build.decks(), ids=lambda deck: deck.stem)
def text(request):
    return request.param.read_text()


def test_the_setup_block_and_every_expression_are_python(text):
    compile(template.SETUP.search(text)[1], "<setup block>", "exec")
    expressions = [match[1].strip() for match in template.EXPRESSION.finditer(text)]
    assert len(expressions) > 2 * text.count("\n---\n")  # the numbers of a lecture are computed, two and more a slide
    for expression in expressions:
        compile(f"({expression})", f"<{expression}>", "eval")


def test_a_screen_reader_is_told_the_language(text):
    """Without this line Marp takes it from the machine's locale, which on a build machine is often C."""
    assert "\nlang: en\n" in text.split("\n---\n")[0]


def test_no_number_with_a_unit_is_typed(text):
    assert template.typed_numbers(text) == []


def test_the_notes_of_every_slide_ask_the_room(text):
    slides = [note for note in template.NOTE.findall(text) if "Minutes:" in note]
    assert len(slides) == text.count("\n---\n")  # one ends the front matter, the others stand between
    assert all("Ask:" in note for note in slides[:-1])  # the last slide is itself three questions
