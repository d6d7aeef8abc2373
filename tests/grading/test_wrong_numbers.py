"""The numbers that sheets and formulas expect from a slip, written down: its sentence explains that one and no other.

Who changes one on purpose writes the table again, and reads what has changed:
`PYTHONPATH=. .venv-dev/bin/python tests/grading/test_wrong_numbers.py > tests/grading/wrong_numbers.csv`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_sheets import FORMULAS, SHEETS

from course_lib.checks.kit.sheet import value, wrong_numbers

TABLE = Path(__file__).with_name("wrong_numbers.csv")
KEYS = [*SHEETS, *FORMULAS]


def lines_of(key: str) -> list[str]:
    return [*(of_sheet(key) if key in SHEETS else of_formulas(key))]


def of_sheet(key: str) -> Iterator[str]:
    """Each question's right number and its slips', as asked of seed 0."""
    given = SHEETS[key].given(0)
    for group in SHEETS[key].levels.values():
        for ask in group.asks:
            numbers = [
                value(number, given) for number in (ask.answer, *(wrong for _, wrong in wrong_numbers(ask.slips)))
            ]
            yield written(key, ask.name, numbers)


def of_formulas(key: str) -> Iterator[str]:
    """Each formula's answers and its slips', case after case."""
    spec = FORMULAS[key]
    for level, found in spec.levels.items():
        for number, case in enumerate(found.cases):
            formula, asked = spec.formulas[case.part], spec.inputs(case, 0).asked
            numbers = [formula.answer(asked), *(wrong(asked) for _, wrong in wrong_numbers(formula.slips))]
            yield written(key, f"{formula.name} {level} {number}", numbers)


def written(key: str, name: str, numbers: list[float | None]) -> str:
    return ",".join([key, name, *("" if number is None else f"{number:.9g}" for number in numbers)])


@pytest.mark.parametrize("key", KEYS)
def test_the_right_number_and_each_slip_s_are_those_of_the_table(key):
    assert lines_of(key) == [line for line in TABLE.read_text().splitlines() if line.startswith(f"{key},")]


def test_the_table_has_no_other_lines():
    assert {line.partition(",")[0] for line in TABLE.read_text().splitlines()} == set(KEYS)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for key in KEYS for line in lines_of(key)))
