"""Nothing that an answer leaves in its process reaches the next one, on the ranks and in the notebook."""

from __future__ import annotations

import subprocess
import sys

import pytest

from course_lib.checks import check
from course_lib.checks.kit import runner
from tests.grading import poisons
from tests.grading.conftest import answer_of
from tools.paths import ROOT

RANKS = 2
ON_RANKS = {**poisons.BOTH, **poisons.RANKS_ALONE}


def reports(function, *given):
    trial = runner.run_call(function, given, RANKS, timeout=60)
    assert trial.error is None
    return trial.reports


@pytest.mark.parametrize("kind", ON_RANKS)
def test_the_next_answer_on_the_ranks_sees_nothing_of_it(kind):
    done, text = ON_RANKS[kind]
    clean = reports(poisons.see, text)
    for before, after in reports(poisons.before_and_after, done, text):
        assert before != after, "nothing was left that could be seen"
    assert reports(poisons.see, text) == clean


@pytest.mark.parametrize("kind", ["grad mode", "a functional", "PyTorch's numbers"])
def test_nor_of_an_answer_that_fails(kind):
    done, text = ON_RANKS[kind]
    clean = reports(poisons.see, text)
    assert "a wrong answer" in str(runner.run_call(poisons.leave_and_fail, (done,), RANKS, timeout=60).error)
    assert reports(poisons.see, text) == clean


def test_ranks_stay_where_nothing_is_left(answers):
    """What the exercises themselves do, and right answers, costs nobody a new process."""
    exercises = ("05.2", "05.5", "06.5")
    for exercise in exercises:
        assert check(exercise, answer_of(exercise, answers, "solutions")).passed
    pools = {size: kept.pool for size, kept in runner.POOLS.items()}
    for exercise in exercises:
        assert check(exercise, answer_of(exercise, answers, "solutions")).passed
    assert {size: kept.pool for size, kept in runner.POOLS.items()} == pools


BEGUN_ONCE = (  # in a process: what PyTorch then writes into an optimizer's class, the library's thread, and its look
    *(f"len(torch.optim.{kind}([torch.ones(1, requires_grad=True)]).state)" for kind in ("SGD", "Adam", "AdamW")),
    "importlib.import_module('course_lib.comm.background').submit(lambda: None).wait()",
    "importlib.import_module('course_lib.parallel.sharding.untouched').watch(())",
)


def test_what_is_begun_once_in_a_process_costs_nobody_a_new_one():
    pools = set()
    for done in (*BEGUN_ONCE, "1"):
        assert len(reports(poisons.see, done)) == RANKS
        pools.add(runner.POOLS[RANKS].pool)
    assert len(pools) == 1


IN_A_NOTEBOOK = """
import os, sys
import course_lib.checks
from course_lib.checks.kit import untouched
from tests.grading import poisons
for kind, (done, text) in poisons.BOTH.items():
    if os.fork() == 0:  # each in a copy of this process
        untouched._start = untouched._start._replace(process=os.getpid())
        clean, left = poisons.before_and_after(done, text)
        with untouched.undisturbed():
            inside = poisons.see(text)
        again = poisons.see(text)
        is_right = left == again != clean and inside == (left if kind.endswith("numbers") else clean)
        os.write(1, f"{kind}: {'as before' if is_right else (clean, left, inside, again)}\\n".encode())
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def in_a_notebook():
    done = subprocess.run([sys.executable, "-c", IN_A_NOTEBOOK], cwd=ROOT, capture_output=True, text=True)
    return dict(line.split(": ", 1) for line in done.stdout.splitlines()), done.stderr


@pytest.mark.parametrize("kind", poisons.BOTH)
def test_in_the_notebook_a_check_sees_nothing_of_it_and_it_is_still_there(kind, in_a_notebook):
    """Random numbers alone go on from where they are."""
    said, problems = in_a_notebook
    gone_for_good = "the folder, which is gone"  # there is no way back to it
    assert said.get(kind, problems) == "as before" or kind == gone_for_good
