"""The table of what a class was told: by exercise and how often, with no name and no word of a student's."""

from __future__ import annotations

import csv
import io

import nbformat
import pytest

from course_lib.checks import grade
from course_lib.checks.kit import registry
from course_lib.checks.kit.result import NotYet
from tools.grading.assignment import why_failed
from tools.grading.misconceptions import ELSE, FEWEST, UNTOUCHED, Misconceptions, sentences_in, sentences_of

SHEET = "02.1"


@pytest.fixture
def graded(monkeypatch):
    """As nbgrader runs a submission."""
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")


def said_of(exercise, answers, level, seed):
    with pytest.raises(NotYet) as refused:
        grade(exercise, answers, level, seed=seed)
    return str(refused.value)


def slip_of(spec, seed):
    """The first level with a slip that a number earns: its name, the right numbers but for one, and the sentence."""
    given = spec.given(seed)
    asks = [ask for group in spec.levels.values() for ask in group.asks]
    right = {ask.name: ask.answer(given) if callable(ask.answer) else ask.answer for ask in asks}
    for level, group in spec.levels.items():
        for ask in group.asks:
            for says, wrong in ask.slips.items():
                number = wrong(given) if callable(wrong) else wrong
                if isinstance(number, int | float) and number == number and number != right[ask.name]:
                    return level, {**right, ask.name: number}, says
    raise AssertionError("no slip")


def test_a_slip_s_sentence_is_counted_and_nobody_is_named(graded):
    spec, seed = registry.find(SHEET), 7
    level, answers, says = slip_of(spec, seed)
    why = said_of(SHEET, answers, level, seed)
    assert says in sentences_in(spec, why)
    table = Misconceptions()
    for student in ("ann", "bo", "cho"):
        table.add(student, {"02-1-a": why, "02-1-b": why})  # two cells, one student
    table.add("dee", {"02-1-a": said_of(SHEET, dict.fromkeys(answers, None), level, seed)})
    table.add("eve", {})
    rows = [*csv.reader(io.StringIO(table.content().decode()))]
    assert rows[0] == ["exercise", "students", "of", "what they were told"]
    assert [SHEET, "3", "5", says] in rows and [SHEET, "1", "5", UNTOUCHED] in rows
    assert not any(name in table.content().decode() for name in ("ann", "bo,", "cho", "dee", "eve"))


def test_what_a_student_typed_is_not_in_the_table():
    assert sentences_in(registry.find(SHEET), "02.1 x, 0 of 2 points: steps: 'ann was here' is not a number") == [ELSE]


def test_an_untouched_function_is_no_misconception(graded):
    def untouched(x):
        raise NotImplementedError("Exercise 02.2: write your code in place of this line")

    spec = registry.find("02.2")
    assert sentences_in(spec, said_of("02.2", untouched, next(iter(spec.levels)), 0)) == [UNTOUCHED]


def test_few_students_have_no_table():
    table = Misconceptions()
    for number in range(FEWEST - 1):
        table.add(str(number), {"02-1-a": "02.1: wrong"})
    assert table.content() is None
    table.add("one more", {})
    assert table.content() is not None


def test_all_kinds_of_exercises_have_sentences_but_scripts():
    kinds = {type(spec).__name__ for spec in registry.exercises().values() if any(True for _ in sentences_of(spec))}
    assert {"NumberExercise", "ProbeExercise", "FormulaExercise"} <= kinds and "ScriptExercise" not in kinds


def test_cells_that_failed_say_why():
    failed = nbformat.v4.new_output("error", ename="NotYet", evalue="02.1: no", traceback=[])
    mark = {"nbgrader": {"grade": True, "grade_id": "02-1-a"}}
    cells = [
        nbformat.v4.new_code_cell("x", metadata=mark, outputs=[failed]),
        nbformat.v4.new_code_cell("x", metadata={"nbgrader": {**mark["nbgrader"], "grade_id": "02-1-b"}}),
        nbformat.v4.new_code_cell("x", outputs=[failed]),
    ]
    assert why_failed(cells) == {"02-1-a": "02.1: no"}
