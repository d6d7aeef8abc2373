"""Each slip, handed in as an answer, is told its own sentence; no slip runs for an answer that is right."""

from __future__ import annotations

import pytest

from course_lib.checks import check
from course_lib.checks.kit import registry
from course_lib.checks.kit.probe import ProbeExercise
from tests.grading.conftest import answer_of

WITH_SLIPS = {key: spec for key, spec in registry.exercises().items() if isinstance(spec, ProbeExercise) and spec.slips}
SLIPS = [(key, number) for key, spec in WITH_SLIPS.items() for number in range(len(spec.slips))]


@pytest.mark.parametrize(("exercise", "number"), SLIPS)
def test_a_slip_is_told_its_own_sentence(exercise, number, monkeypatch):
    """And not one that stands before it: its number in the list is told as well."""
    spec = WITH_SLIPS[exercise]
    before = spec.slips
    numbered = {
        (
            lambda case, trial, place=place, says=says: (
                f"{place} {says if isinstance(says, str) else says(case, trial)}"
            )
        ): one
        for place, (says, one) in enumerate(spec.slips.items())
    }
    says, program = list(before.items())[number]
    monkeypatch.setitem(vars(spec), "slips", numbered)  # a check puts back what modules define, and not this
    told = check(exercise, program).reason
    assert f": {number} {says if isinstance(says, str) else ''}" in told


@pytest.mark.parametrize("exercise", WITH_SLIPS)
def test_no_slip_runs_for_a_right_answer(exercise, answers, monkeypatch):
    ran = []
    left = lambda *given: ran.append(given)  # noqa: E731  (what slips would be known by)
    monkeypatch.setitem(vars(WITH_SLIPS[exercise]), "left", left)
    assert check(exercise, answer_of(exercise, answers, "solutions")).passed
    assert not ran
