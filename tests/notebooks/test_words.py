"""The field's words: each stands in bold where the table says, and nobody goes on with our old one."""

from __future__ import annotations

import ast
import io
import re
import tokenize

import pytest

from tools.build_notebooks import read_source
from tools.lesson import cells
from tools.paths import ROOT
from tools.words import LINK, PAGE, lesson_of, old_words, page, table, where_bold

LESSONS = sorted((ROOT / "notebooks/src").glob("*.py"))
EXERCISES = sorted((ROOT / "exercises/src").glob("*.py"))
SLIDES = sorted((ROOT / "slides").glob("*.md"))
LIBRARY = sorted((ROOT / "course_lib").rglob("*.py"))
NOT_READ = re.compile(r"<!-- =.*?-->|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$|\]\([^)]*\)", re.DOTALL)  # code, formulas, links
MAGIC = re.compile(r"^\s*[%!].*$", re.MULTILINE)
SETUP = re.compile(r"^```python.*?^```$", re.DOTALL | re.MULTILINE)  # of a deck: its strings are read, its names not
SHOWN = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
TAG = re.compile(r"</?[a-z][^<>]*>")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
STRING = re.compile(r"\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)'")


def strings(code, *, docstrings):
    """The texts in a piece of Python, those inside of f-strings too; what has no space in it is a name."""
    tree = ast.parse(code)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, DOCUMENTED) and node.body]
    about = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        if is_text and (docstrings or id(node) not in about):
            yield node.value


def comments(code):
    """What stands behind a # in a piece of Python."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def texts_of_notebook(source):
    """All that a reader of a lesson or of exercises reads: prose, and in code its strings and comments."""
    for cell in cells(source):
        if cell.cell_type == "markdown":
            yield NOT_READ.sub(" ", cell.source)
        else:
            code = MAGIC.sub("", cell.source)
            yield from strings(code, docstrings=True)
            yield from comments(code)


def texts_of_deck(path):
    """What a deck shows and its speaker reads: prose, and the strings of its code."""
    text = path.read_text(encoding="utf-8")
    code = [*SETUP.findall(text), *SHOWN.findall(text)]
    said = [hit[0] or hit[1] for part in code for hit in STRING.findall(part)]
    yield from (one for one in said if " " in one)
    yield TAG.sub(" ", SHOWN.sub("{{}}", NOT_READ.sub(" ", SETUP.sub("", text))))


def found_in(texts):
    """The old words in some texts, each with what the field says."""
    return [f"{said!r}: say {term}" for text in texts for said, term in old_words(text)]


@pytest.mark.parametrize("path", [*LESSONS, *EXERCISES], ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_a_notebook_says_the_field_s_words(path):
    assert found_in(texts_of_notebook(path)) == []


@pytest.mark.parametrize("path", SLIDES, ids=lambda path: path.stem)
def test_a_deck_says_the_field_s_words(path):
    assert found_in(texts_of_deck(path)) == []


def test_feedback_figures_and_errors_say_the_field_s_words():
    found = {path: found_in(strings(path.read_text(encoding="utf-8"), docstrings=False)) for path in LIBRARY}
    assert len(LIBRARY) > 100
    assert {str(path.relative_to(ROOT)): said for path, said in found.items() if said} == {}


@pytest.mark.parametrize("word", table(), ids=lambda word: word["term"])
def test_a_word_stands_in_bold_where_the_table_says_it_is_met(word):
    assert any(where_bold(word, lesson_of(word["lesson"])))
    assert [path.stem for path in LESSONS if path.stem < word["lesson"] and any(where_bold(word, path))] == []


def test_rows_are_whole_and_in_the_order_of_the_lessons():
    numbers = [word["lesson"] for word in table()]
    assert numbers == sorted(numbers) and len({word["term"] for word in table()}) == len(numbers) > 50
    for word in table():
        assert word.keys() <= {"term", "bold", "lesson", "says", "others", "old", "ours"}
        assert word["says"] and word["others"] and not word["says"].endswith(".")
        assert all(old.keys() <= {"said", "patterns", "honest"} and old["said"] for old in word.get("old", ()))


def test_the_page_is_the_table():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.words"


@pytest.mark.parametrize("source", LESSONS, ids=lambda path: path.stem)
def test_every_lesson_leads_to_the_page(source):
    assert [cell.source.count(LINK) for cell in read_source(source).cells if LINK in cell.source] == [1]


BAD = [
    ("each of them pays for a start", "latency"),
    ("short tensors cost a start each", "latency"),
    ("so starts cost most", "latency"),
    ("Every rank's trip there and back", "round trip"),
    ("nothing is computed again", "activation checkpointing"),
    ("of 32 texts", "sequence"),
    ("a text's forward", "sequence"),
    ("messages and idle ranks", "bubble"),
    ("one stage hands it on", "identity"),
    ("model utilisation of 0.4", "MFU"),
    ("In ZeRO-1's bar Adam's part", "optimizer states"),
]
GOOD = [
    "training starts; a rank starts from x; the start of a send; from the start; start it again",
    "A round trip takes long, and Round trips too.",
    "PyTorch computes them again in backward.",
    "The text says: train on a text file, in the training text, or on a longer text.",
    "A rank that is idle waits.",
    "By hand on two ranks, in a hands-on part",
]


@pytest.mark.parametrize(("text", "term"), BAD)
def test_an_old_word_is_found(text, term):
    assert [found for _, found in old_words(text)] == [term]


@pytest.mark.parametrize("text", GOOD)
def test_an_honest_use_is_left_alone(text):
    assert old_words(text) == []


def test_what_is_read_of_a_file(tmp_path):
    notebook = tmp_path / "90_probe.py"
    notebook.write_text('# %% [markdown]\n# All texts, but `texts` is code.\n\n# %%\n# the texts\nsay = f"{1} texts"\n')
    assert len(found_in(texts_of_notebook(notebook))) == 3
    deck = tmp_path / "90_probe.md"
    deck.write_text('```python setup\ntexts = "two texts"\n```\n\n## Two texts {{ "texts" or "no texts" }}\n')
    assert len(found_in(texts_of_deck(deck))) == 3
