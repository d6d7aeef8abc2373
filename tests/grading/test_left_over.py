"""What belongs to another part of the program stays as it is, and no message is left under way: in every exercise."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from course_lib.checks import check
from course_lib.checks.kit.left_over import Inputs, picture
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.registry import CHECKS, exercises
from tests.grading.conftest import MODULES, answer_of, cells_of, defined_in
from tests.grading.spoiling import spoiling

LEAVE = "What your code is given belongs to another part of the program. Leave its numbers as they are"
BY_COMM = "A call of `torch.distributed` itself is not in that record"
REFUSES_NATIVE = re.compile(
    r"own calls|\b(write|parts|step)_exercise\(|wrong_means\(|use comm|in the ledger"
)  # how the file of an exercise says it
FUNCTIONS = {
    key: answer
    for key, spec in exercises().items()
    if isinstance(spec, ProbeExercise) and not isinstance(answer := answer_of(key, defined_in, "solutions"), type)
}
# Numbers and words, which nobody can overwrite; models, groups and parameters, of which each exercise says what
# becomes of them.
NOTHING_TO_OVERWRITE = {
    *("01.1", "01.3", "01.5", "01.7", "01.8", "01.9", "02.10", "03.1", "03.2", "03.5", "03.6", "04.4", "04.5", "04.6"),
    *("07.1", "07.8", "08.1", "08.5", "08.9", "12.1"),
}


@pytest.mark.parametrize("exercise", FUNCTIONS)
def test_who_overwrites_what_was_given_is_told(exercise):
    result = check(exercise, spoiling(FUNCTIONS[exercise]))
    if exercise in NOTHING_TO_OVERWRITE:
        assert result.passed
    else:
        assert re.search(r"`\w+`( on rank 0)? is overwritten, and another part of the program", result.reason)


@pytest.mark.parametrize("module", MODULES)
def test_the_rules_stand_in_the_text(module):
    """Under "How to work", which every exercise of a page is read after."""
    cells = cells_of(MODULES[module]).values()
    how = next(text for text in cells if text.startswith("## How to work")).replace("\n", " ")
    assert LEAVE in how
    judges = (CHECKS / f"module_{module}").glob("*.py")
    if any(REFUSES_NATIVE.search(path.read_text(encoding="utf-8")) for path in judges):
        assert BY_COMM in how


def test_a_picture_sees_numbers_however_deep():
    x, inside = torch.arange(3.0), [[1.0, 2.0], {"a": [3]}]
    before = picture((x, inside))
    assert picture((x, inside)) == before
    inside[1]["a"].append(4)
    assert picture((x, inside)) != before
    inside[1]["a"].pop()
    x[1] = -1
    assert picture((x, inside)) != before


@pytest.mark.parametrize("value", [torch.tensor(2), torch.ones(2, 3).T, torch.ones(2, dtype=torch.bfloat16), ()])
def test_a_picture_of_any_tensor(value):
    assert picture(value) == picture(value)


def test_the_argument_is_named_as_its_function_names_it():
    inputs = Inputs(lambda kept, spoiled: spoiled.sort())
    inputs.watched([2, 1], [2, 1])
    assert inputs.overwritten == "spoiled"


def test_a_class_is_handed_out_as_it_is():
    assert inspect.isclass(Inputs(dict).watched)
