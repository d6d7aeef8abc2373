"""Module 10: whatever the seed, each slip is refused, and what a script may have done wrong gives other numbers."""

from __future__ import annotations

import pytest

from course_lib.checks.kit.registry import exercises
from course_lib.checks.module_10 import own_gossip, own_hook
from course_lib.checks.module_10.hooked_run import run
from course_lib.comm.ledger import Ledger
from course_lib.verify.equality import close
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


def cases_of(key):
    return [case for level in exercises()[key].levels.values() for case in level.cases]


@pytest.mark.parametrize("mistake", own_gossip.WRONG_WAYS)
def test_each_mistake_in_gossip_gives_other_numbers_in_some_case(mistake):
    for seed in SEEDS:
        tasks = [own_gossip.task_of(case, seed) for case in cases_of("10.3")]
        assert any(not close(own_gossip.mixed(task, mistake), own_gossip.mixed(task)) for task in tasks), seed


@pytest.mark.parametrize("mistake", own_hook.WRONG_WAYS | own_hook.WRONG_RESTARTS)
def test_each_mistake_in_a_hook_gives_other_weights_in_every_case(mistake):
    for seed in SEEDS[:3]:
        for case in cases_of("10.11"):
            task, ranks = own_hook.task_of(case, seed), case.world_size
            right, wrong = run(task, ranks), run(task, ranks, mistake=mistake)
            assert any(not close(wrong[name], x) for name, x in right.items()), (seed, case)
