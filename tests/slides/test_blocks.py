"""The pieces of HTML that decks are made of, and which decks a build takes."""

from __future__ import annotations

import pytest

from course_lib.viz.ink.style import DARK_LETTERS, WHITE_LETTERS
from slides import blocks, build
from slides.blocks import badge, bar, bars, key, kind, left, parts, percent, power, right, row


def test_a_bar_is_as_wide_as_its_share():
    assert bar(0.25, "#FFFFFF") == '<span class="bar" style="width: 25%; background: #FFFFFF"></span>'


@pytest.mark.parametrize(("colour", "ink"), [("#F0E442", DARK_LETTERS), ("#6A4C93", WHITE_LETTERS)])
def test_the_text_in_a_bar_can_be_read_on_its_colour(colour, ink):
    assert bar(0.5, colour, "12") == (
        f'<span class="bar" style="width: 50%; background: {colour}; color: {ink}">12</span>'
    )


def test_parts_stand_beside_each_other_with_and_without_text():
    drawn = parts((0.5, "#6A4C93", "2"), (0.25, "#F0E442"))
    assert drawn == f'<span class="parts">{bar(0.5, "#6A4C93", "2")}{bar(0.25, "#F0E442")}</span>'


def test_a_key_shows_the_colour_and_says_what_it_means():
    assert key("#6A4C93", "weights") == '<span class="key" style="background: #6A4C93"></span>&ensp;weights'


def test_a_row_has_words_numbers_and_bars():
    cells = '<td>DDP</td><td align="right">2</td><td class="bars">–</td>'
    assert row(left("DDP"), right("2"), bars("–")) == f"<tr>{cells}</tr>"


@pytest.mark.parametrize(("number", "written"), [(0.0, "0"), (1.6e-16, "2e−16"), (5e-9, "5e−09")])
def test_a_power_of_ten_has_one_digit_and_a_minus(number, written):
    assert power(number) == written


def test_a_share_is_written_in_per_cent():
    assert percent(0.406) == "41\N{NO-BREAK SPACE}%"


def test_a_rank_has_its_colour():
    assert badge(1) == f'<span class="badge" style="background: #E69F00; color: {DARK_LETTERS}">rank 1</span>'


def test_a_slide_says_what_it_shows():
    assert 'class="kind formula">formula<' in kind("formula")


def test_decks_know_every_block():
    assert all(callable(getattr(blocks, name)) for name in blocks.ALL)


def test_the_start_of_a_name_chooses_decks():
    every = build.decks()
    assert [deck.name for deck in build.decks("02")] == ["02_collectives.md"]
    assert [deck.name for deck in build.decks("02_c")] == ["02_collectives.md"]
    assert len(every) > 1 and every == sorted(every) and build.decks("nothing") == []


def test_a_name_that_no_deck_has_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["build.py", "nothing", "--check"])
    assert build.main() == 1
    assert capsys.readouterr().err == "no deck's name starts with 'nothing'\n"
