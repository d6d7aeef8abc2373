"""Exercises of module 10 that are asked without ranks: whatever the seed, each slip is refused, the solution never."""

from __future__ import annotations

import pytest

from course_lib.checks.kit.registry import exercises
from course_lib.comm.ledger import Ledger
from tests.grading.conftest import answer_of

SEEDS = range(12)
ASKED = [key for key in ("10.2", "10.5", "10.6", "10.7", "10.9", "10.10") if key in exercises()]


def refused(key, answer, seed):
    """Whether some case of the exercise refuses an answer, asked in this process."""
    spec = exercises()[key]
    cases = [case for level in spec.levels.values() for case in (*level.cases, *level.drawn(seed))]
    for case in cases:
        given = spec.inputs(case, seed)
        if spec.verdict(case, given, (spec.probe(answer, given),), Ledger([], 1)):
            return True
    return False


@pytest.mark.parametrize("key", ASKED)
def test_each_rule_of_the_text_is_tested_at_every_seed(key, answers):
    right = answer_of(key, answers, "solutions")
    for seed in SEEDS:
        assert not refused(key, right, seed), seed
        for says, program in exercises()[key].slips.items():
            assert refused(key, program, seed), (seed, says)
