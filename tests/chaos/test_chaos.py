"""A part of the fault matrix that takes seconds, and that a line which does not hold is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.line import LeftOut, Line, Seen

QUICK = {("run_ranks", "fork"), ("%%ranks", "kernel killed"), ("train", "folder that appears")}
LINES = {(line.part, line.fault): line for line in chaos.all_lines()}


@pytest.mark.parametrize("where", sorted(QUICK), ids=" ".join)
def test_a_line_holds(where, short_folder):
    assert LINES[where].broken(LINES[where].do(short_folder)) == ""


def test_every_part_has_a_quick_line_but_the_grader_whose_class_takes_a_minute():
    assert {part for part, _ in QUICK} == {part for part, _ in LINES} - {"grader"}


SEEN = Seen(said="rank 1 died", seconds=0.5, lost="nothing")
LINE = Line(
    part="run_ranks",
    fault="SIGKILL",
    done="rank 1 is killed",
    do=lambda folder: SEEN,
    said="^rank 1 died$",
    lost="nothing",
    within_s=1.0,
)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"said": "all is well"}, "expected to be said: ^rank 1 died$"),
        ({"lost": "nothing at all"}, "expected to be lost: nothing"),
        ({"left": 2}, "2 processes are left"),
        ({"seconds": 1.5}, "it took more than 1 s"),
    ],
)
def test_what_does_not_hold_is_said_and_makes_the_command_fail(change, why, capsys):
    assert chaos.main([LINE, replace(LINE, do=lambda folder: replace(SEEN, **change))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("run_ranks  SIGKILL ") and lines[1].endswith("rank 1 died")
    assert lines[3].strip().startswith(f"DOES NOT HOLD: {why}; said: ")
    assert lines[4].startswith("1 hold, 1 do not, 0 left out; ")


def test_what_a_machine_lacks_is_said_and_fails_nothing(capsys):
    def lack(folder):
        raise LeftOut("no disk of its own")

    assert chaos.main([replace(LINE, do=lack)]) == 0
    assert "left out: no disk of its own" in capsys.readouterr().out
