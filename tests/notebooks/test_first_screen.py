"""A learner's copy has no outputs: its text tells no answer before the guess, and nothing of a picture too early."""

from __future__ import annotations

import re
from functools import cache
from itertools import dropwhile, takewhile

import nbformat
import pytest

from tools.build_notebooks import read_source, target_of
from tools.lesson import FOLD
from tools.paths import ROOT

SOURCES = sorted((ROOT / "notebooks/src").glob("*.py"))
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
ASKS = re.compile(r"^ *predict\(", re.MULTILINE)
ANSWERED = re.compile(r"^Predict: (?P<question>.+)\n(?:.*\n)*?  the answer  (?P<answer>.+)$", re.MULTILINE)
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
# What is said of a picture that stands above, or that no cell has drawn yet.
OF_A_PICTURE = re.compile(r"\b[Tt]he (\w+ )?picture (below )?(shows|adds|has|holds|stands?)\b|\bHere are the losses\b")
MOST_IMPORT_LINES = 10
SETUP = re.compile(r"\bfolded cells? below\b.*\bfirst\b.*\brestart the kernel\b", re.DOTALL)


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def cells(request):
    return read_source(request.param).cells


@cache
def answers(source):
    """By question the answers that the built lesson shows; a question may come more than once."""
    notebook = nbformat.read(target_of(source), as_version=4)
    shown = ["\n".join(map(text_of, cell.get("outputs", []))) for cell in notebook.cells]
    return [found.groups() for text in shown for found in ANSWERED.finditer(text)]


def text_of(output):
    """What an output says in words."""
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def asks(cell):
    """Whether a cell asks for a prediction."""
    return cell.cell_type == "code" and bool(ASKS.search(cell.source))


def test_a_published_answer_is_folded_in_every_viewer():
    """On GitHub a cell cannot be folded, but a part of its output can."""
    for source in SOURCES:
        for cell in filter(asks, nbformat.read(target_of(source), as_version=4).cells):
            question, answer, *_ = cell.outputs
            assert "the answer  " not in question["text"] and "<details><summary>After" in answer["data"]["text/html"]


def text_after_questions(cells):
    """Each cell that asks, and the text cells between it and the next code."""
    for place, cell in enumerate(cells):
        if asks(cell):
            rest = list(dropwhile(lambda one: not one.source.strip(), cells[place + 1 :]))
            yield cell, [one.source for one in takewhile(lambda one: one.cell_type == "markdown", rest)]


def tells(text, answer):
    """Whether a text has the answer, in digits or as a word, or its letters in bold or in quotes.

    Letters are names of runs: a text may name all of them, so only what sets the right ones apart counts.
    """
    number = re.match(r"-?[\d,]*\.?\d+", answer)
    if not number:
        return bool(re.search(rf"\b(?:only|are|is) \**{re.escape(answer)}\**(?: is| are)? sound\b", text))
    digits = number[0].replace(",", "")
    plain = re.sub(r"<!--.*?-->|\]\(.*?\)", "", text, flags=re.DOTALL).replace(",", "")
    spelt = [WORDS[int(digits)]] if digits.isdigit() and int(digits) < len(WORDS) else []
    return any(re.search(rf"(?<![\w.]){re.escape(one)}(?![\w]|\.\d)", plain) for one in (digits, *spelt[2:]))


def test_what_follows_a_question_begins_with_a_fold(cells):
    follows = [texts[0] for _, texts in text_after_questions(cells) if texts and not texts[0].startswith("## ")]
    assert [text.splitlines()[0] for text in follows if not text.startswith(f"{FOLD}\n\n")] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_answer_stands_unfolded_under_its_question(source):
    known = answers(source)
    told = []
    for cell, texts in text_after_questions(read_source(source).cells):
        open_text = FOLDED.sub("", "\n".join(texts[:1]))
        before_next = re.split(r"^#+ |\*\*Predict", open_text, flags=re.MULTILINE)[0]
        here = [(question, answer) for question, answer in known if question in cell.source]
        told += [(question, answer) for question, answer in here if tells(before_next, answer)]
    assert known and told == []


def test_nothing_is_said_of_a_picture_above_the_cell_that_draws_it(cells):
    pairs = zip(cells, cells[1:], strict=False)
    above = [text.source for text, code in pairs if text.cell_type == "markdown" and code.cell_type == "code"]
    drawn = [re.split(r"^## ", text, flags=re.MULTILINE)[-1] for text in above]  # the part that leads to the cell
    assert [found[0] for text in drawn for found in OF_A_PICTURE.finditer(text)] == []


def test_the_first_screen_names_the_setup_cell(cells):
    first = next(place for place, cell in enumerate(cells) if cell.cell_type == "code")
    assert SETUP.search("\n".join(cell.source for cell in cells[:first]))


def test_the_rules_on_samples():
    assert tells("six messages make 48.", "48 bytes") and tells("It is 1,572,864 bytes", "1572864 bytes (1.5 MiB)")
    assert not tells("It is 48.5 or 148", "48 bytes") and not tells("lesson 04", "4")
    assert tells("finds that only B is sound", "B") and not tells("In run A", "A")
    assert OF_A_PICTURE.search("The picture adds them") and not OF_A_PICTURE.search("Run the cell for the picture")


def test_the_setup_cell_has_few_import_lines(cells):
    """Each line is a door: whoever opens the cell sees where things come from."""
    setup = next(cell.source for cell in cells if cell.cell_type == "code")
    lines = [line for line in setup.splitlines() if re.match(r"(from|import) ", line)]
    assert 3 <= len(lines) <= MOST_IMPORT_LINES
