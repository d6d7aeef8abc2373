"""On a graded copy numbers must be formulas: the cell of the answers is run again with other given numbers."""

from __future__ import annotations

import re

import pytest
from IPython.core.interactiveshell import InteractiveShell
from test_sheets import SHEETS, right_numbers

from tests.grading.conftest import EXERCISES, MODULES
from tools.exercise_text import learner_copy, solution_copy

SEED = 7


@pytest.fixture
def shell():
    """A notebook's, without a kernel; it remembers its cells as that does."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def cells_of(key, copy=solution_copy, seed=SEED):
    """Setup, given, answer and graded cells of an exercise, by name."""
    mine = key.replace(".", "-")
    notebook = copy(EXERCISES / "src" / f"{MODULES[key[:2]]}.py", seed)
    return {
        cell.id: cell.source for cell in notebook.cells if cell.id == "setup" or f"{cell.id}-".startswith(f"{mine}-")
    }


def shown(shell, cells, capsys):
    """What is printed, and the error of each cell that has one."""
    errors = {}
    for name, text in cells.items():
        result = shell.run_cell(text, store_history=True)
        if result.error_in_exec:
            errors[name] = result.error_in_exec
    return capsys.readouterr().out, errors


@pytest.mark.parametrize("key", SHEETS)
def test_the_solution_follows_other_given_numbers(key, shell, capsys):
    printed, errors = shown(shell, cells_of(key), capsys)
    assert "passed" in printed and not errors


@pytest.mark.parametrize("key", SHEETS)
def test_its_numbers_typed_earn_nothing_where_others_would_be_right(key, shell, capsys):
    cells = cells_of(key, learner_copy)
    mine = key.replace(".", "-")
    for name, number in right_numbers(key, SEED).items():
        cells[mine] = re.sub(rf"^{name} = None$", f"{name} = {number!r}", cells[mine], flags=re.MULTILINE)
    printed, errors = shown(shell, cells, capsys)
    assert "not yet" in printed and "right here, and wrong with other given numbers" in printed
    assert len(errors) == len(graded_where_something_changes(key)) > 0


def graded_where_something_changes(key):
    """The levels in which other given numbers have other answers, which no choice explains."""
    by_seed = [right_numbers(key, seed) for seed in range(SEED, SEED + 20)]
    names = {name for name in by_seed[0] if len({numbers[name] for numbers in by_seed}) > 1}
    return [
        level
        for level, group in SHEETS[key].levels.items()
        if any(ask.name in names and not ask.choice for ask in group.asks)
    ]


def test_in_a_learner_s_own_notebook_typed_numbers_pass(shell, capsys):
    cells = cells_of("02.1", learner_copy, seed=0)
    for name, number in right_numbers("02.1", 0).items():
        cells["02-1"] = cells["02-1"].replace(f"{name} = None", f"{name} = {number!r}")
    printed, errors = shown(shell, cells, capsys)
    assert "passed, 8 of 8" in printed and not errors


def test_what_a_cell_leaves_is_as_before(shell, capsys):
    cells = cells_of("02.1")
    shown(
        shell,
        cells | {"after": "kept = (p, M, ring_steps, GRADE_SEED, transfer)\nprint(kept, callable(check))"},
        capsys,
    )
    names = shell.user_ns
    assert names["kept"][:2] == tuple(names["transfer"]) and names["GRADE_SEED"] == SEED
    assert names["ring_steps"] == 2 * (names["p"] - 1)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (
            (
                "tree_steps = p.bit_length() - 1",
                "tree_steps = {8: 3, 16: 4, 32: 5, 64: 6}[p] if p == transfer.p else 0",
            ),
            "",
        ),
        (
            ("p, M = transfer", "p, M = transfer\nif GRADE_SEED != 7: raise KeyError('other')"),
            "this cell fails: KeyError",
        ),
        (("p, M = transfer", "p, M = {}, {}"), "naive_steps: right here, and wrong with other given numbers"),
    ],
)
def test_what_does_not_follow_is_told(edit, reason, shell, capsys):
    cells = cells_of("02.1")
    old, new = edit
    assert old in cells["02-1"]
    given = [str(number) for number in SHEETS["02.1"].given(SEED)]
    cells["02-1"] = cells["02-1"].replace(old, new.format(*given) if "{}" in new else new)
    printed, _ = shown(shell, cells, capsys)
    assert (reason in printed) if reason else ("passed" in printed)


@pytest.mark.parametrize(("key", "name"), [("06.8", "group_ahead"), ("07.5", "tp"), ("04.2", "wrong_line")])
def test_a_choice_may_be_typed_and_what_is_computed_from_it_is_right(key, name, shell, capsys):
    cells = cells_of(key)
    mine, typed = key.replace(".", "-"), right_numbers(key, SEED)[name]
    cells[mine] = cells[mine].replace(f'    "{name}": {name},', f'    "{name}": {typed},', 1)
    answers = re.search(r"^(\w+) = \{$", cells[mine], re.MULTILINE)
    assert answers and f'    "{name}": {typed},' in cells[mine]
    cells[mine] = re.sub(rf"^{name} = .*?(?=^\w)", f"{name} = {typed}\n", cells[mine], flags=re.MULTILINE | re.DOTALL)
    printed, errors = shown(shell, cells, capsys)
    assert "passed" in printed and not errors


def test_answers_of_no_cell_are_asked_for_in_one(shell, capsys):
    cells = cells_of("02.1")
    cells["literal"] = f'check("02.1", {right_numbers("02.1", SEED)!r}, seed=GRADE_SEED)'
    printed, _ = shown(shell, {name: cells[name] for name in ("setup", "02-1-given", "literal")}, capsys)
    assert "the cell that computes these numbers was not found" in printed
