"""What a learner sees: verdicts, hints, predictions, and that a check harms nothing around it."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.checks import check, given, grade, hint, predict, score
from course_lib.checks import predict as predict_function
from course_lib.checks.kit import hints as hints_module
from course_lib.checks.kit import runner
from course_lib.checks.kit.sheet import suggest
from course_lib.checks.kit.signature import Puzzle, diagnose
from course_lib.ranks import run_ranks
from tests.grading.test_sheets import right_numbers
from tools.paths import ROOT

predictions = sys.modules[predict_function.__module__]


@pytest.fixture(autouse=True)
def _fresh_session(monkeypatch):
    monkeypatch.setattr(predictions, "_answered", {})
    monkeypatch.setattr(hints_module, "_shown", {})


# check -------------------------------------------------------------------------------------------------------------


def chunk_of_sum(x):
    """02.2, right values by the wrong means."""
    total = x.clone()
    dist.all_reduce(total)
    return total.tensor_split(dist.get_world_size())[dist.get_rank()]


def test_the_verdict_shows_each_level_and_where_to_find_help(capsys):
    result = check("02.2", chunk_of_sum)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "02.2 ring reduce-scatter: not yet, 0 of 5 points"
    assert re.match(r"  FAIL values  4 ranks, 24 numbers: right values, but nothing is in the ledger: ", lines[1])
    assert lines[2:] == ["  -    edges   not run yet", "  -    bytes   not run yet", 'For a hint: hint("02.2")']
    assert (result.points, result.possible, result.passed) == (0, 5, False)


LOADED = """
import sys
from course_lib.checks.kit.registry import find
find("04.1")
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("course_lib.checks.module_")))
"""


def test_a_check_imports_the_file_of_its_exercise_and_no_other():
    ran = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["halves", "module_04"]


def test_one_part_gives_the_points_of_that_part():
    right = check("02.1", right_numbers("02.1"), part="ring")
    wrong = check("02.1", right_numbers("02.1") | {"tree_steps": 7}, part="tree")
    assert (right.passed, right.points, right.possible) == (True, 2, 2)
    assert (wrong.passed, wrong.points, wrong.possible) == (False, 0, 2)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: check("02.99", None), r"^exercise: '02.99'; .*; choose one of 01.1, 01.2, "),
        (lambda: check("02.2", None, part="speed"), r'^check\("02.2"\): part=\'speed\'; .*; choose from values, edges'),
        (lambda: given("02.2"), r"^given: '02.2'; only number exercises .*; ask for one of 01.4, 01.10, 02.1, 03."),
        (lambda: hint("02.3", 9), r'^hint\("02.3"\): number=9; exercise 02.3 has 3 hints; choose 1 to 3$'),
    ],
)
def test_a_wrong_call_is_one_line(call, line):
    with pytest.raises(ValueError, match=line):
        call()


def test_a_result_instead_of_a_function_is_said_so():
    assert "pass the function or class itself" in check("02.2", torch.ones(3)).reason
    assert "pass the dict of numbers" in check("02.1", 7).reason


def test_what_cannot_travel_is_said_so():
    lock = threading.Lock()
    assert "it cannot travel to the ranks (cannot pickle" in check("02.4", lambda x: lock).reason


def test_a_call_of_an_unwritten_answer_names_that_one(answers):
    written, unwritten = answers("solutions")["ring_all_reduce"], answers("release")["ring_reduce_scatter"]
    mixed = type(written)(written.__code__, {**written.__globals__, "ring_reduce_scatter": unwritten})
    assert "it calls your answer to 02.2, which is not written yet" in check("02.4", mixed).reason


def test_while_nbgrader_grades_only_the_graded_cells_run(monkeypatch, capsys):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert check("02.1", right_numbers("02.1")).levels == ()
    assert capsys.readouterr().out == ""
    assert check("02.1", right_numbers("02.1"), part="ring").passed


def test_a_graded_cell_without_its_points_fails_and_is_one_line_in_a_notebook():
    with pytest.raises(AssertionError) as failed:
        grade("02.1", right_numbers("02.1") | {"ring_steps": None}, "ring")
    (line,) = failed.value._render_traceback_()  # what IPython shows
    assert line == "not yet: 02.1 ring, 0 of 2 points: the check above says why"


def test_a_graded_cell_with_its_points_says_so(capsys):
    grade("02.1", right_numbers("02.1"), "ring")
    assert capsys.readouterr().out.startswith("02.1 bytes, steps and seconds: passed, 2 of 2 points\n  ok   ring")


def test_while_nbgrader_grades_a_graded_cell_says_why(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(AssertionError, match="^02.1 ring, 0 of 2 points: ring_steps: no number yet$"):
        grade("02.1", right_numbers("02.1") | {"ring_steps": None}, "ring")


def test_what_a_function_prints_is_shown_and_never_on_stderr(capsys):
    def talks(x):
        print("out", len(x))
        print("err", file=sys.stderr)
        return comm.all_reduce(x)

    check("02.4", talks)
    shown = capsys.readouterr()
    assert "rank 3 │ out 24" in shown.out
    assert "rank 3 │ err" in shown.out
    assert shown.err == ""


def test_a_handle_without_wait_is_found():
    def never_waits(x, src):
        x, rank = x.clone(), dist.get_rank()
        if rank == src:
            handles = [comm.isend(x, other) for other in range(dist.get_world_size()) if other != src]
            handles[0].wait()
            dist.kept_by_a_test = handles  # dropped ones cancel their message
        else:
            comm.recv(x, src)
        return x

    assert "each handle its wait()" in check("02.5", never_waits).reason


def test_a_crash_in_a_check_leaves_the_notebook_s_ranks_alone():
    before = run_ranks(os.getpid, 2)
    assert "a crash: rank" in check("02.4", lambda x: os._exit(1)).reason
    assert run_ranks(os.getpid, 2) == before


def test_the_pools_of_the_checks_stay_small(answers):
    solved = answers("solutions")
    assert check("02.5", solved["tree_broadcast"]).passed
    assert check("02.6", solved["hierarchical_all_reduce"]).passed
    assert 0 < sum(runner.POOLS) <= runner.MOST_RANKS


def test_another_seed_gives_other_numbers():
    assert given("02.1") == (8, 64 * 2**20)
    assert len({given("02.1", seed) for seed in range(20)}) > 5


# what wrong numbers reveal -----------------------------------------------------------------------------------------


def sum_puzzle(p=4, n=6):
    blocks = [[torch.randn(n, generator=torch.Generator().manual_seed(r * p + c)) for c in range(p)] for r in range(p)]
    return Puzzle(blocks=blocks, plan=[[[(s, c) for s in range(p)] for c in range(p)] for _ in range(p)])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w, puzzle: w, None),
        (lambda w, puzzle: [-x for x in w], "the sign is turned round"),
        (lambda w, puzzle: [x * 4 for x in w], "exactly 4.0 x the right one: a sum that was taken 4 times"),
        (lambda w, puzzle: [x / 4 for x in w], "an average: was the sum divided by the number of ranks (4)?"),
        (lambda w, puzzle: [x * 0 for x in w], "all zeros"),
        (lambda w, puzzle: [w[0] - torch.cat(puzzle.blocks[2]), *w[1:]], "the contribution of rank 2 is missing in"),
        (lambda w, puzzle: [w[0] + torch.cat(puzzle.blocks[1]), *w[1:]], "rank 1 is counted 2 times in the sum of"),
        (lambda w, puzzle: [w[0].roll(6), *w[1:]], "made of chunk 3, where the sum of chunk 0 belongs"),
        (lambda w, puzzle: [w[0] + torch.arange(24), *w[1:]], "in no rank's input"),
    ],
)  # fmt: skip
def test_a_wrong_sum_tells_what_happened(change, reason):
    puzzle = sum_puzzle()
    found = diagnose(change([puzzle.wanted(rank) for rank in range(4)], puzzle), puzzle)
    assert found == reason if reason is None else reason in found


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (4 / 6, "the whole tensor once: a ring all-reduce sends 2(p-1)/p of it"),
        (16 / 6, "p whole tensors"),
        (0.5, "1/2.0 of the answer; half of it: all-reduce has two phases"),
        (4, "4.0 x the answer; p times too much"),
        (1.048576, "MiB (2**20 bytes) where MB"),
        (17, "17.0 x the answer"),
        (9 / 9.684, "7.1 % too small"),
        (257 / 256, "0.39 % too large"),
    ],
)
def test_a_typical_guess_is_recognised(ratio, text):
    assert text in suggest(ratio, 4)


@pytest.mark.parametrize(
    ("guess", "text"),
    [(0, "zero has no ratio to it"), (-3, "not of the same sign"), (5e-9, "in billions? The number itself is asked")],
)
def test_a_guess_without_a_ratio_is_told_why(guess, text, capsys):
    predict("how many?", guess=guess, answer=5)
    assert f"  0 of 10 points: {text}" in capsys.readouterr().out


def test_a_guess_gets_every_explanation_that_its_ratio_has():
    assert suggest(2, 4) == (
        "2.0 x the answer; p/2 times too much: the whole tensor in each of p-1 steps; "
        "or twice as much: is one phase or one direction enough here?"
    )
    assert suggest(0.5, 0) == "1/2.0 of the answer"


# hints and predictions ---------------------------------------------------------------------------------------------


def test_hints_unfold_one_by_one(capsys):
    for _ in range(4):
        hint("02.3")
    hint("02.3", 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "02.3, hint 1 of 3",
        "02.3, hint 2 of 3",
        "02.3, hint 3 of 3 (the last one)",
        "02.3, hint 3 of 3 (the last one)",
        "02.3, hint 1 of 3",
    ]


@pytest.mark.parametrize(
    ("guess", "answer", "points"),
    [("B", "B", 10), ("c, a", "AC", 10), ("A", "AC", 0), ("none", "", 10), ("none", "B", 0), ("", "B", 0)],
)
def test_letters_name_what_is_meant_in_any_order(guess, answer, points, capsys):
    predict("which?", guess=guess, answer=answer)
    assert f"  {points} of 10 points" in capsys.readouterr().out


@pytest.mark.parametrize("guess", [None, 2])
def test_letters_are_asked_for_before_they_are_shown(guess, capsys):
    predict("which?", guess=guess, answer="B")
    told = capsys.readouterr().out
    assert "run this cell again" in told and "the answer  B" not in told


def test_a_prediction_shows_guess_answer_points_and_what_went_wrong(capsys):
    question = "bytes each rank sends in a ring all-reduce of 1 MiB on 4 ranks"
    predict(question, guess=2**20, answer=lambda: 1.5 * 2**20, unit="bytes", world_size=4)
    assert capsys.readouterr().out.splitlines() == [
        f"Predict: {question}",
        "  your guess  1,048,576 bytes (1 MiB)",
        "  the answer  1,572,864 bytes (1.5 MiB)",
        "  5 of 10 points: the guess is 1/1.5 of the answer; the whole tensor once: "
        "a ring all-reduce sends 2(p-1)/p of it",
    ]


def test_no_guess_no_answer(capsys):
    predict("steps?", guess=None, answer=lambda: pytest.fail("asked before the guess"))
    assert "put your number in place of None and run this cell again" in capsys.readouterr().out
    predict("steps?", guess="many", answer=lambda: pytest.fail("asked before the guess"))
    assert "'many' is not a number: put one in its place" in capsys.readouterr().out


@pytest.mark.parametrize("guess", [np.int64(150), np.float32(150), torch.tensor(150), torch.tensor(150.0)], ids=repr)
def test_a_guess_may_be_any_kind_of_number(guess, capsys):
    predict("how much?", guess=guess, answer=150)
    assert "10 of 10 points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("guess", "unit"),
    [("1.5 MiB", "bytes"), ("1,572,864", "bytes"), ("1536KiB", "B"), ("0.001572864 GB", "bytes"), (" 1572864 ", "")],
)
def test_a_guess_may_say_its_unit(guess, unit, capsys):
    predict("how much?", guess=guess, answer=1.5 * 2**20, unit=unit)
    assert "10 of 10 points: right" in capsys.readouterr().out
    predict("how long?", guess="2 ms", answer=2000, unit="us")
    assert "10 of 10 points: right" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("guess", "unit", "told"),
    [
        ("3 s", "bytes", "'3 s' is not a number of bytes"),
        ("3 MiB", "", "'3 MiB' is not a number"),
        ("1.2.3", "", "'1.2.3' is not a number"),
        (math.nan, "GB", "nan is not a number of GB"),
    ],
)
def test_a_guess_of_another_kind_is_asked_for_again(guess, unit, told, capsys):
    predict("how much?", guess=guess, answer=lambda: pytest.fail("asked before the guess"), unit=unit)
    assert f"{told}: put one in its place and run this cell again" in capsys.readouterr().out


def test_the_score_counts_each_question_once(capsys):
    predict("a?", guess=1, answer=100)
    predict("b?", guess=3, answer=3)
    predict("a?", guess=100, answer=100)
    capsys.readouterr()
    score()
    assert capsys.readouterr().out == "Predictions so far: 20 of 20 points in 2 questions\n"


@pytest.mark.parametrize(
    ("guess", "points"), [(100, 10), (100.5, 10), (150, 5), (50, 5), (11, 2), (1001, 0), (-100, 0)]
)
def test_points_of_a_guess(guess, points, capsys):
    predict("how much?", guess=guess, answer=100)
    assert f"  {points} of 10 points" in capsys.readouterr().out
