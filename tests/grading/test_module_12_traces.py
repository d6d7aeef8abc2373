"""12.4: whatever a seed draws, each way to misread the traces is refused, with its own sentence."""

from __future__ import annotations

import json

from course_lib.checks.kit.registry import find
from course_lib.checks.kit.script import Ran
from course_lib.checks.module_12.uncovered import MISTAKES, exposed_us
from course_lib.ranks.script import Ended

SEEDS = range(5)


def verdicts(seed, mistake):
    """What is said in each case to a script that makes this mistake."""
    spec = find("12.4")
    for level in spec.levels.values():
        for case in level.cases:
            texts = spec.beside(case, seed)
            lines = [
                f"{name} {kind} {us:.1f}\n"
                for name, text in texts.items()
                if name.endswith(".json")
                for kind, us in exposed_us(json.loads(text)["traceEvents"], mistake).items()
            ]
            yield spec.verdict(case, Ran(starts=((Ended(1, 0, "".join(lines), ""),),), beside=texts))


def test_each_mistake_is_refused_at_every_seed_by_its_own_sentence():
    for seed in SEEDS:
        assert not any(verdicts(seed, ""))
        for says, mistake in MISTAKES.items():
            told = [reason for reason in verdicts(seed, mistake) if reason]
            assert told and all(reason.endswith(f": {says}") for reason in told), (seed, mistake, told)


def test_the_one_that_takes_longest_is_never_the_one_to_begin_with():
    for seed in SEEDS:
        case = find("12.4").levels["plain"].cases[0]
        events = json.loads(find("12.4").beside(case, seed)["fsdp_rank0.json"])["traceEvents"]
        assert next(iter(exposed_us(events))) == "AllReduce" and next(iter(exposed_us(events, "total"))) == "AllGather"
