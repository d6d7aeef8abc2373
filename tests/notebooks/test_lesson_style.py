"""Lessons stay readable: short code, enough text, no plotting code, nothing of the package defined again."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tools.density import density, density_of
from tools.lesson import DEEPER, cells, core_minutes
from tools.lesson_sections import sections
from tools.paths import ROOT

SOURCES = sorted((ROOT / "notebooks/src").glob("*.py"))
EXERCISES = sorted((ROOT / "exercises/src").glob("*.py"))
# In a window 1300 pixels wide JupyterLab shows 109 characters of code beside its file browser: 866 pixels of 7.83 each
# in DejaVu Sans Mono and Menlo. A scroll bar takes two of them.
FITS = 107
TO_KEEP = "\n> **To keep.** "
MAGIC_OR_COMMENT = re.compile(r"^\s*(%|!|#)")


def of_kind(source, kind):
    return [cell.source for cell in cells(source) if cell.cell_type == kind]


def code_lines(text):
    """The lines that a reader must understand: no blank ones, magics or comments, and no closing bracket alone."""
    return [line for line in text.splitlines() if re.search(r"\w", line) and not MAGIC_OR_COMMENT.match(line)]


def python_of(text):
    """The cell's Python, its magics taken out, parsed."""
    return ast.parse("\n".join("" if re.match(r"^\s*[%!]", line) else line for line in text.splitlines()))


@cache
def names_of_the_package():
    """Every public function and class that course_lib defines."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "course_lib").rglob("*.py")]
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = {node.name for tree in trees for node in tree.body if isinstance(node, kinds)}
    return {name for name in found if not name.startswith("_")}


def test_there_are_notebooks():
    assert SOURCES


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def source(request):
    return request.param


def test_a_lesson_has_30_to_64_cells(source):
    """About 40 of them before *Going deeper*, where `core_minutes` is the limit."""
    assert 30 <= len(cells(source)) <= 64


def test_code_cells_are_short(source):
    read = [text for text in of_kind(source, "code") if not text.startswith("# Setup")]  # a folded list of names
    assert max(len(code_lines(text)) for text in read) <= 40


@pytest.mark.parametrize("path", [*SOURCES, *EXERCISES], ids=lambda path: path.stem)
def test_code_fits_into_a_window(path):
    lines = [line for text in of_kind(path, "code") for line in text.splitlines()]
    assert [line for line in lines if len(line) > FITS] == []


def test_the_core_path_takes_fifty_minutes_at_most(source):
    assert any(cell.source.startswith(DEEPER) for cell in cells(source))  # or nobody knows where it ends
    assert core_minutes(source) <= 50


def test_prose_has_few_numbers(source):
    """Names such as A100 and lesson 05 apart; a figure, a table and a cell's output are where the others stand."""
    assert_few(sections(source), at_most=4)
    for section in sections(source):
        assert_few([section], at_most=8)


def assert_few(some, *, at_most):
    found = density_of(some)
    share = found.in_a_hundred(found.numbers)
    assert share <= at_most, f"{share:.1f} numbers in a hundred words of {[one.name for one in some]}: {found.numbers}"


def test_text_and_code_are_balanced(source):
    ratio = len(of_kind(source, "markdown")) / len(of_kind(source, "code"))
    assert 1.0 <= round(ratio, 1) <= 1.6, f"{ratio:.2f} text cells for each code cell"


def test_no_plotting_code(source):
    plotting = re.compile(r"\b(plt|ax|fig|axes)\.|\bmatplotlib\b")
    assert [line for text in of_kind(source, "code") for line in text.splitlines() if plotting.search(line)] == []


def test_nothing_of_the_package_is_defined_again(source):
    kinds = (ast.FunctionDef, ast.ClassDef)
    nodes = [node for text in of_kind(source, "code") for node in ast.walk(python_of(text))]
    assert {node.name for node in nodes if isinstance(node, kinds)} & names_of_the_package() == set()


def test_cells_bear_known_marks_only_and_a_varying_output_its_reason(source):
    for cell in cells(source):
        marks = {name: value for name, value in cell.metadata.items() if name != "lines_to_next_cell"}  # jupytext's own
        assert marks.pop("tags", ["raises-exception"]) == ["raises-exception"]
        assert marks.pop("folded", True) is True
        assert re.fullmatch(r"\w.+", marks.pop("varies", "reason"))
        assert marks == {} and not re.search("nbval", cell.source, re.IGNORECASE)


def test_a_picture_of_rounding_is_not_compared(source):
    """Training lets rounding grow, and what grows differs between processors."""
    for cell in cells(source):
        assert "plot_loss_differences(" not in cell.source or "varies" in cell.metadata, cell.source


def test_no_guess_is_filled_in_and_nothing_depends_on_one(source):
    """A learner's "Run all" passes every question; so a prediction gives nothing to the cells after it."""
    for text in filter(re.compile("predict\\(").search, of_kind(source, "code")):
        tree = python_of(text)
        statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "predict"]
        assert calls and all(call in statements for call in calls)
        guesses = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "guess"]
        assert len(guesses) == len(calls)
        assert {ast.unparse(guess) for guess in guesses} <= {"None", "guesses[run]"}


def test_the_imports_at_the_top_are_folded(source):
    first = next(cell for cell in cells(source) if cell.cell_type == "code")
    imports = [node for node in python_of(first.source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert first.metadata.get("folded", False) == (len(imports) > 0)


def test_a_section_has_one_sentence_to_keep_at_most_and_most_have_one(source):
    prose = "\n".join(of_kind(source, "markdown")).partition(f"\n{DEEPER}")[0]
    kept = [section.count(TO_KEEP) for section in re.split(r"^#{2,3} ", prose, flags=re.MULTILINE)[1:]]
    assert set(kept) <= {0, 1} and sum(kept) >= len(kept) / 2
    assert prose.count("o keep.**") == sum(kept)  # and none in another form, or above the first section


@pytest.mark.parametrize("path", [*SOURCES, *EXERCISES], ids=lambda path: path.stem)
def test_what_is_folded_in_one_line_is_html(path):
    """A backtick in it would be shown as it is."""
    folded = re.findall(r"<details><summary>.*?</details>", path.read_text())
    assert [text for text in folded if "`" in text] == []


@pytest.mark.parametrize("path", [*SOURCES, *EXERCISES], ids=lambda path: path.stem)
def test_formulas_stand_after_a_blank_line(path):
    assert [text for text in of_kind(path, "markdown") if not opens_well(text)] == []


def opens_well(text):
    """Whether each `$$` that opens a formula follows a blank line."""
    lines = ["", *text.splitlines()]
    opening = True
    for before, line in zip(lines, lines[1:], strict=False):
        for _ in range(line.count("$$")):
            if opening and before.strip():
                return False
            opening = not opening
    return True


def test_the_formula_rule_on_samples():
    assert opens_well("Text:\n\n$$ x $$\n\nmore") and opens_well("$$\nx\n$$")
    assert not opens_well("Text:\n$$ x $$") and not opens_well("Text:\n$$\nx\n$$")


def test_the_count_of_numbers_on_samples():
    """What a reader has to bear in mind counts, and neither a name, nor a table, nor the number of an item."""
    found = density(
        "Lesson 01: ZeRO-1 on 64 A100s, rank 0's 17.6 GB<!-- =17.6 --> in fp32, 5 % or 1/8 of 8B, $2$ to 3–4."
    )
    assert found.numbers == ("64", "0's", "17.6", "5", "1/8", "2", "3–4")
    assert found.names == ("01", "1", "A100s", "fp32", "8B")
    listed = density("1. Two GPUs\n2. Three\n\n| 64 | 80 GB |\n\n<details><summary>3. Why 16?</summary>16.</details>")
    assert listed.numbers == ("16", "16") and listed.words == 6
    assert listed.in_a_hundred(listed.numbers) == pytest.approx(100 / 3)
